"""Batches of images in memory, computed by NumPy as pure functions of (seed, step), without TensorFlow."""

import concurrent.futures
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import positive_integer, seed_number
from idmatters_tf.data.augmentations import AUGMENTATIONS, CropAndFlip

_ORDER, _AUGMENTATION, _FLIPS = 0, 1, 2


class NumpyBatches:
    """Batches that are shuffled, cropped after padding, flipped and standardized, with cutout.

    Pass `batch` to `idmatters_tf.callbacks.FunctionBatches`. The batches differ from those of
    `idmatters_tf.data.batches.TrainBatches`, whose random numbers are TensorFlow's.

    Args:
        images: uint8, `(n, rows, cols, channels)`.
        labels: integers, `(n,)`.
        batch_size: number of images in a batch.
        seed: non-negative integer.
        augmentation: a value of `idmatters_tf.data.augmentations.AUGMENTATIONS`; None for the images as they are.
    """

    def __init__(
        self,
        images: NDArray[Any],
        labels: NDArray[Any],
        batch_size: int,
        seed: int = 0,
        augmentation: CropAndFlip | None = AUGMENTATIONS["paper"],
    ):
        self.batch_size = positive_integer("batch_size", batch_size)
        self.seed = seed_number(seed)
        self._labels = np.asarray(labels, np.int32)
        self._flips = None if augmentation is None else augmentation.flips
        self._augmentation = CropAndFlip(0) if augmentation is None else augmentation
        pads = ((0, 0), *((self._augmentation.padding,) * 2,) * 2, (0, 0))
        mode: Any = {"zero": "constant", "reflect": "reflect"}[self._augmentation.padding_mode]
        count, *self._shape = images.shape
        self._type = images.dtype
        # Pixels of all channels as single elements: rows of windows are copied, and mirrored, several times faster.
        pixel = np.dtype((np.void, images.dtype.itemsize * images.shape[-1]))
        pixels = np.ascontiguousarray(np.pad(images, pads, mode)).view(pixel)[..., 0]
        self._rows = np.lib.stride_tricks.sliding_window_view(pixels, self._shape[1], axis=2)
        # Alternating flips: the images that are mirrored in even epochs.
        self._first_flips = np.random.default_rng((self.seed, _FLIPS)).integers(0, 2, count)
        self._order = functools.lru_cache(2)(
            lambda epoch: np.random.default_rng((self.seed, _ORDER, epoch)).permutation(count)
        )

    def batch(self, step: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Return the images, float32 `(batch_size, rows, cols, channels)`, and labels of a step."""
        random = np.random.default_rng((self.seed, _AUGMENTATION, step))
        size = self.batch_size
        positions = step * size + np.arange(size)
        indices = self._indices(positions)
        top, left = random.integers(0, 2 * self._augmentation.padding + 1, (2, size))
        if self._flips == "alternate":
            flips = (self._first_flips[indices] + positions // len(self._labels)) % 2
        else:
            flips = random.integers(0, 2, size)
        pixels = self._rows[indices[:, None], top[:, None] + np.arange(self._shape[0]), left[:, None]]
        if self._flips is not None:
            mirrored = flips == 1
            pixels[mirrored] = pixels[mirrored][:, :, ::-1]
        images = standardize(pixels.view(self._type).reshape(-1, *self._shape))
        side = self._augmentation.cutout
        # A square of an even side has its center between pixels, and extends further before it.
        starts = random.integers(0, self._shape[:2], (size, 2)) - side // 2
        for image, (row, col) in zip(images if side else (), starts.tolist(), strict=False):
            image[max(row, 0) : max(row + side, 0), max(col, 0) : max(col + side, 0)] = 0
        return images, self._labels[indices]

    def _indices(self, positions):
        """Return the index of the image at each position of the endless sequence of permutations."""
        epochs, offsets = np.divmod(positions, len(self._labels))
        indices = np.empty(len(epochs), np.int64)
        for epoch in np.unique(epochs).tolist():
            indices[epochs == epoch] = self._order(epoch)[offsets[epochs == epoch]]
        return indices


class NumpyEvaluationBatches:
    """Batches that contain every image once, standardized. Padding of the last batch has weight 0.

    Args:
        images: uint8, `(n, rows, cols, channels)`.
        labels: integers, `(n,)`.
        batch_size: number of images in a batch.
    """

    def __init__(self, images: NDArray[Any], labels: NDArray[Any], batch_size: int):
        self.batch_size = positive_integer("batch_size", batch_size)
        self._images, self._labels = images, np.asarray(labels, np.int32)

    @property
    def steps(self) -> int:
        """Number of batches that contain all images."""
        return -(-len(self._images) // self.batch_size)

    def dataset(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]]:
        """Return an iterator of (images, labels, weights)."""
        count = len(self._images)
        for first in range(0, count, self.batch_size):
            positions = np.arange(first, first + self.batch_size)
            rows = np.minimum(positions, count - 1)
            yield standardize(self._images[rows]), self._labels[rows], (positions < count).astype(np.float32)


def compute_ahead(function: Callable[[int], Any], threads: int, count: int = 16) -> Callable[[int], Any]:
    """Return a function of the step with the same values, which threads compute before they are needed.

    Args:
        function: pure function of the step, such as the `batch` of `NumpyBatches`.
        threads: number of threads.
        count: number of following steps whose values are computed.
    """
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    values: dict[int, concurrent.futures.Future[Any]] = {}

    def get(step: int) -> Any:
        for other in [other for other in values if not step <= other < step + count]:
            del values[other]
        for next_step in range(step, step + count):
            if next_step not in values:
                values[next_step] = pool.submit(function, next_step)
        return values.pop(step).result()

    return get


def standardize(images: NDArray[Any]) -> NDArray[np.float32]:
    """Return each image with mean 0 and standard deviation 1, as `idmatters_tf.layers.PerImageStandardization`.

    Args:
        images: `(n, rows, cols, channels)`.
    """
    flat = images.reshape(len(images), -1).astype(np.float32)
    flat -= flat.mean(1, keepdims=True)
    deviation = np.sqrt(np.einsum("ij,ij->i", flat, flat) / np.float32(flat.shape[1]))
    flat /= np.maximum(deviation, flat.shape[1] ** -0.5)[:, None]
    return flat.reshape(images.shape)
