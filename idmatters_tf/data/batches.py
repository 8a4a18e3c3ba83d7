"""Batches of images in memory, computed by NumPy as pure functions of (seed, step).

Each batch can be computed at any time, in any thread and on any worker. A resumed run gets the batches of an
uninterrupted run, and each replica computes its share of the global batch only.

Training uses an endless sequence of positions. Position p is the (p % n)-th element of the permutation of epoch p // n.
Step s uses the positions from s * batch to (s + 1) * batch, so a batch may span two epochs.

Only the methods `dataset` import TensorFlow.
"""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import check_choice, positive_integer, seed_number
from idmatters_tf.data.protocols import ALONE, Batch, EvaluationBatchSource, Int, Share, TrainBatchSource, WeightedBatch

if TYPE_CHECKING:
    from idmatters_tf._keras_types import Dataset

# Decoded bytes or preprocessed floating-point numbers.
Pixels: TypeAlias = NDArray[np.uint8 | np.float32]
Labels: TypeAlias = NDArray[np.integer[Any]] | Sequence[int]
Value = TypeVar("Value")

# Distinct streams of random numbers.
_ORDER, _AUGMENTATION, _FLIPS = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class CropAndFlip:
    """Padding on each side, a random crop to the original size, random flips left to right, and cutout.

    The base code of Hardt & Ma (tensorflow/models `resnet`, 2016) pads by 2 pixels on each side, He et al. (2015) by 4.
    Springenberg et al. (2014) shift images by up to 5 pixels.

    Attributes:
        padding: number of pixels on each side.
        padding_mode: "zero" for black pixels, or "reflect" for the image mirrored at its border.
        flips: "random" flips each image with probability 1/2 at each use. "alternate" flips a random half of the images
            in every other epoch and the other half in between, so that two epochs contain each image and its mirror
            image once (Jordan, *94% on CIFAR-10 in 3.29 seconds*, arXiv 2404.00498, section 3.4).
        cutout: side in pixels of a square that is set to 0 after standardization. Its center is anywhere in the image
            and it is clipped at the border (DeVries & Taylor, arXiv 1708.04552). 0 for none.
    """

    padding: int
    padding_mode: str = "zero"
    flips: str = "random"
    cutout: int = 0

    def __post_init__(self) -> None:
        check_choice("padding_mode", self.padding_mode, ("zero", "reflect"))
        check_choice("flips", self.flips, ("random", "alternate"))


AUGMENTATIONS: dict[str, CropAndFlip | None] = {
    "paper": CropAndFlip(2),
    "standard": CropAndFlip(4),
    "all-cnn": CropAndFlip(5),
    "alternating": CropAndFlip(4, "reflect", "alternate"),
    "none": None,
}


class TrainBatches(TrainBatchSource):
    """Training batches of images in memory: shuffled, cropped after padding, flipped and standardized, with cutout.

    The padded images and their mirror images are stored, so that a batch is one gather. CIFAR takes 390 MB (480 MB with
    4 pixels of padding) instead of 150 MB, and four times as much as float32.

    Args:
        images: `(n, rows, cols, channels)`, uint8 images that are standardized one by one after the augmentation, or
            preprocessed float32 images, which are augmented only.
        labels: integers, `(n,)`.
        batch_size: size of the global batch.
        seed: non-negative integer.
        augmentation: a value of `AUGMENTATIONS`; None for the images as they are.
    """

    def __init__(
        self,
        images: Pixels,
        labels: Labels,
        batch_size: int,
        seed: int = 0,
        augmentation: CropAndFlip | None = AUGMENTATIONS["paper"],
    ):
        self.batch_size = positive_integer("batch_size", batch_size)
        self.seed = seed_number(seed)
        self._labels = np.asarray(labels, np.int32)
        self._augmentation = augmentation
        count, *self._shape = images.shape
        self._type = images.dtype
        if augmentation is not None:
            border = (augmentation.padding, augmentation.padding)
            mode = "reflect" if augmentation.padding_mode == "reflect" else "constant"
            images = np.pad(images, ((0, 0), border, border, (0, 0)), mode)
            images = np.concatenate([images, images[:, :, ::-1]])
        # Pixels of all channels are single elements, so that rows of windows are copied several times faster.
        pixel = np.dtype((np.void, images.dtype.itemsize * images.shape[-1]))
        pixels = np.ascontiguousarray(images).view(pixel)[..., 0]
        self._rows = np.lib.stride_tricks.sliding_window_view(pixels, self._shape[1], axis=2)
        # Alternating flips: the images that are mirrored in even epochs.
        self._first_flips = np.random.default_rng((self.seed, _FLIPS)).integers(0, 2, count)
        self._order = functools.lru_cache(2)(
            lambda epoch: np.random.default_rng((self.seed, _ORDER, epoch)).permutation(count)
        )

    def indices(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the image at each position of the endless sequence."""
        epochs, offsets = np.divmod(positions, len(self._labels))
        indices = np.empty(len(epochs), np.int64)
        for epoch in np.unique(epochs).tolist():
            indices[epochs == epoch] = self._order(epoch)[offsets[epochs == epoch]]
        return indices

    def batch(self, step: int, start: int = 0, stop: int | None = None) -> Batch:
        """Return the examples from `start` to `stop` of the global batch of a step.

        Args:
            step: number of the step.
            start: first example.
            stop: end of the examples, exclusive (default: the batch size).

        Returns:
            Images, float32 `(stop - start, rows, cols, channels)`, and labels, int32 `(stop - start,)`.
        """
        size = self.batch_size
        # Numbers are drawn for the global batch, so that examples do not depend on the number of replicas.
        part = slice(start, stop)
        positions = step * size + np.arange(size)[part]
        indices = self.indices(positions)
        labels = self._labels[indices]
        if self._augmentation is None:
            return self._windows(indices, 0 * indices, 0 * indices), labels
        random = np.random.default_rng((self.seed, _AUGMENTATION, step))
        offsets = 2 * self._augmentation.padding
        top, left = random.integers(0, offsets + 1, (2, size))[:, part]
        if self._augmentation.flips == "alternate":
            flips = (self._first_flips[indices] + positions // len(self._labels)) % 2
        else:
            flips = random.integers(0, 2, size)[part]
        # A window of a mirror image is the mirrored window of the image.
        images = self._windows(indices + flips * len(self._labels), top, np.where(flips, offsets - left, left))
        side = self._augmentation.cutout
        if side:
            # A square of an even side has its center between pixels, and extends further before it.
            starts = random.integers(0, self._shape[:2], (size, 2))[part] - side // 2
            for image, (row, col) in zip(images, starts.tolist(), strict=True):
                image[max(row, 0) : max(row + side, 0), max(col, 0) : max(col + side, 0)] = 0
        return images, labels

    def _windows(self, indices, top, left):
        """Return the parts of stored images that begin at a row and a column, prepared for a network."""
        pixels = self._rows[indices[:, None], top[:, None] + np.arange(self._shape[0]), left[:, None]]
        return _prepare(pixels.view(self._type).reshape(-1, *self._shape))

    def dataset(self, first_step: Int, steps: int, share: Share = ALONE, stride: int = 1) -> "Dataset":
        from idmatters_tf.data.streams import computed_batches

        return computed_batches(self.batch, self.batch_size, share, first_step, steps, stride)


class EvaluationBatches(EvaluationBatchSource):
    """Evaluation batches of images in memory, which threads compute ahead.

    Args:
        images: `(n, rows, cols, channels)`, uint8 images that are standardized one by one, or preprocessed float32
            images, which are not changed.
        labels: integers, `(n,)`.
        batch_size: size of the global batch.
    """

    def __init__(self, images: Pixels, labels: Labels, batch_size: int):
        self.batch_size = positive_integer("batch_size", batch_size)
        self._images, self._labels = images, np.asarray(labels, np.int32)

    @property
    def steps(self) -> int:
        return -(-len(self._images) // self.batch_size)

    def batch(self, number: int, start: int = 0, stop: int | None = None) -> WeightedBatch:
        """Return images, labels and weights, 0 or 1, of the examples from `start` to `stop` of a global batch."""
        positions = number * self.batch_size + np.arange(self.batch_size)[start:stop]
        rows = np.minimum(positions, len(self._images) - 1)
        return _prepare(self._images[rows]), self._labels[rows], (positions < len(self._images)).astype(np.float32)

    def __iter__(self) -> Iterator[WeightedBatch]:
        yield from map(compute_ahead(self.batch, 2, 4), range(self.steps))

    def dataset(self, share: Share = ALONE) -> "Dataset":
        from idmatters_tf.data.streams import computed_batches

        return computed_batches(self.batch, self.batch_size, share, 0, self.steps)


def compute_ahead(function: Callable[[int], Value], threads: int, count: int = 8) -> Callable[[int], Value]:
    """Return a function of the step with the same values, which threads compute before they are needed.

    Args:
        function: pure function of the step, such as the `batch` of `TrainBatches`.
        threads: number of threads.
        count: number of following steps whose values are computed.
    """
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    values: dict[int, concurrent.futures.Future[Value]] = {}

    def get(step: int) -> Value:
        for other in [other for other in values if not step <= other < step + count]:
            del values[other]
        for next_step in range(step, step + count):
            if next_step not in values:
                values[next_step] = pool.submit(function, next_step)
        return values.pop(step).result()

    return get


def standardize(images: NDArray[np.generic]) -> NDArray[np.float32]:
    """Return each image with mean 0 and standard deviation 1, as `idmatters_tf.layers.PerImageStandardization`.

    Args:
        images: `(n, rows, cols, channels)`.
    """
    flat = images.reshape(len(images), -1).astype(np.float32)
    size = np.float32(flat.shape[1])
    # `einsum` is faster than `sum`.
    flat -= (np.einsum("ij->i", flat) / size)[:, None]
    deviation = np.sqrt(np.einsum("ij,ij->i", flat, flat) / size)
    flat *= (1 / np.maximum(deviation, size**-0.5))[:, None]
    return flat.reshape(images.shape)


def _prepare(images: Pixels) -> NDArray[np.float32]:
    """Return images for a network: bytes are standardized, floating-point numbers are not."""
    return standardize(images) if images.dtype == np.uint8 else images.astype(np.float32, copy=False)
