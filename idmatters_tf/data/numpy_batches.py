"""Batches of images in memory, computed by NumPy as pure functions of (seed, step), without TensorFlow."""

import concurrent.futures
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import positive_integer, seed_number

_ORDER, _AUGMENTATION = 0, 1


class NumpyBatches:
    """Batches that are shuffled, cropped after padding, flipped and standardized.

    Pass `batch` to `idmatters_tf.callbacks.FunctionBatches`. The batches differ from those of
    `idmatters_tf.data.batches.TrainBatches`, whose random numbers are TensorFlow's.

    Args:
        images: uint8, `(n, rows, cols, channels)`.
        labels: integers, `(n,)`.
        batch_size: number of images in a batch.
        seed: non-negative integer.
        padding: rows and columns of zeros on each side before the random crop.
    """

    def __init__(self, images: NDArray[Any], labels: NDArray[Any], batch_size: int, seed: int = 0, padding: int = 2):
        self.batch_size, self.seed = positive_integer("batch_size", batch_size), seed_number(seed)
        self._labels, self._padding = np.asarray(labels, np.int32), padding
        padded = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
        self._windows = np.lib.stride_tricks.sliding_window_view(padded, images.shape[1:3], axis=(1, 2))
        count = len(images)
        self._order = functools.lru_cache(2)(
            lambda epoch: np.random.default_rng((self.seed, _ORDER, epoch)).permutation(count)
        )

    def batch(self, step: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Return the images, float32 `(batch_size, rows, cols, channels)`, and labels of a step."""
        random = np.random.default_rng((self.seed, _AUGMENTATION, step))
        epochs, places = np.divmod(step * self.batch_size + np.arange(self.batch_size), len(self._labels))
        rows = np.array([self._order(epoch)[place] for epoch, place in zip(epochs, places, strict=True)])
        top, left = random.integers(0, 2 * self._padding + 1, (2, self.batch_size))
        images = self._windows[rows, top, left].transpose(0, 2, 3, 1)
        flips = random.integers(0, 2, (self.batch_size, 1, 1, 1), np.int8)
        return standardize(np.where(flips, images[:, :, ::-1], images)), self._labels[rows]


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
    images = images.astype(np.float32)
    deviation = images.std((1, 2, 3), keepdims=True)
    return (images - images.mean((1, 2, 3), keepdims=True)) / np.maximum(deviation, images[0].size ** -0.5)
