"""Batches of images in memory, as pure functions of (seed, step).

Each batch can be computed at any time and on any worker. A resumed run gets the batches of an uninterrupted run, and
each replica computes its share of the global batch only.

Training uses an endless sequence of positions. Position p is the (p % n)-th element of the permutation of epoch p // n.
Step s uses the positions from s * batch to (s + 1) * batch, so a batch may span two epochs.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from idmatters_tf._arguments import positive_integer
from idmatters_tf.data.augment import InMemoryImages, Pixels
from idmatters_tf.data.augmentations import CropAndFlip
from idmatters_tf.data.protocols import ALONE, Int, Share

Labels: TypeAlias = NDArray[np.integer[Any]] | Sequence[int]

# Distinct streams of random numbers.
_ORDER, _AUGMENTATION, _CUTOUT = 1, 2, 3


def shuffle_positions(positions: tf.Tensor, count: int, seed: int) -> tf.Tensor:
    """Return the index of the image at each position of the endless sequence, a permutation for each epoch.

    Args:
        positions: int64, `(n,)`.
        count: number of images.
        seed: non-negative integer below 2^32.

    Returns:
        int64, `(n,)`, in [0, count).
    """
    epochs = positions // count
    seeds = tf.stack([tf.fill(tf.shape(epochs), tf.cast(seed, tf.int64)), epochs], axis=1)
    seeds = tf.cast(tf.concat([seeds, tf.fill([tf.shape(epochs)[0], 1], tf.cast(_ORDER, tf.int64))], 1), tf.uint32)
    # The Python wrapper of this operation does not support a batch of seeds.
    return tf.raw_ops.RandomIndexShuffle(
        index=positions % count,  # pyright: ignore[reportOperatorIssue]
        seed=seeds,
        max_index=tf.fill(tf.shape(positions), tf.cast(count - 1, tf.int64)),
    )


def without_autotuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the data set with autotuning turned off. The data sets of this package have no parameters to tune.

    An iterator that ends waits for the autotuning thread, which may sleep for up to a minute in long runs (TensorFlow
    2.21).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def replica_elements(
    batch_size: int, share: Share, first_step: Int, steps: int, stride: int = 1
) -> tuple[tf.data.Dataset, int]:
    """Return a data set of (step, first example in the global batch) and the number of examples of each element.

    There is one element for each replica in turn. Raises ValueError if the replicas do not divide the batch size.
    """
    if batch_size % share.replicas:
        raise ValueError(
            f"The global batch size must be a multiple of {share.replicas}, the number of replicas. "
            f"Received: {batch_size}"
        )
    size = batch_size // share.replicas

    @tf.autograph.experimental.do_not_convert
    def element(number):
        return first_step + number // share.count * stride, (share.first + number % share.count) * size

    return tf.data.Dataset.range(steps * share.count).map(element), size


class TrainBatches:
    """Training batches of images in memory.

    Args:
        images: `(n, rows, cols, channels)`, uint8 images that are standardized one by one after the augmentation, or
            preprocessed float32 images, which are augmented only.
        labels: integers, `(n,)`.
        batch_size: size of the global batch.
        seed: non-negative integer below 2^32.
        augmentation: a value of `idmatters_tf.data.augmentations.AUGMENTATIONS`.
    """

    def __init__(
        self,
        images: Pixels,
        labels: Labels,
        batch_size: int,
        seed: int = 0,
        augmentation: CropAndFlip | None = None,
    ):
        positive_integer("batch_size", batch_size)
        if not 0 <= seed < 2**32:
            raise ValueError(f"Argument `seed` must be in 0..2^32-1. Received: seed={seed}")
        self.batch_size = batch_size
        self.seed = seed
        self._images = InMemoryImages(images, augmentation)
        with tf.device("CPU:0"):
            self._labels = tf.constant(labels, tf.int32)
            if augmentation is not None and augmentation.flips == "alternate":
                first = np.random.default_rng(seed).integers(0, 2, len(labels), dtype=np.int32)
                self._first_flips = tf.constant(first)

    def indices(self, positions: tf.Tensor) -> tf.Tensor:
        """Return the index of the image at each position of the endless sequence, int64 `(count,)`."""
        return shuffle_positions(positions, self._images.count, self.seed)

    def batch(self, step: Int, start: Int = 0, stop: Int | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the examples from `start` to `stop` of the global batch of a step.

        Args:
            step: number of the step, an integer or int64 scalar.
            start: first example, an integer or int64 scalar.
            stop: end of the examples, exclusive (default: the batch size).

        Returns:
            Images, float32 `(stop - start, rows, cols, channels)`, and labels, int32 `(stop - start,)`.
        """
        stop = self.batch_size if stop is None else stop
        step = tf.cast(step, tf.int64)
        positions = step * self.batch_size + tf.range(start, stop, dtype=tf.int64)
        indices = self.indices(positions)
        draws = self._draws(step, 3, _AUGMENTATION)[start:stop]
        augmentation = self._images.augmentation
        if augmentation is not None and augmentation.flips == "alternate":
            epochs = tf.cast(positions // self._images.count, tf.int32)
            flips = tf.gather(self._first_flips, indices) + epochs
            draws = tf.concat([draws[:, :2], flips[:, None]], 1)
        if augmentation is not None and augmentation.cutout:
            draws = tf.concat([draws, self._draws(step, 2, _CUTOUT)[start:stop]], 1)
        return self._images.batch(indices, draws), tf.gather(self._labels, indices)

    def _draws(self, step, columns, purpose):
        """Return random numbers for the global batch. Shares take slices, independent of the number of replicas."""
        key = tf.stack([tf.constant((self.seed << 2) + purpose, tf.int64), step])
        return tf.random.stateless_uniform([self.batch_size, columns], key, 0, 1 << 30, tf.int32)

    def dataset(self, first_step: Int, steps: int, share: Share = ALONE, stride: int = 1) -> tf.data.Dataset:
        """Return the batches of `steps` steps as a `tf.data.Dataset`, with one element for each replica in turn.

        Args:
            first_step: first step, an integer or int64 scalar.
            steps: number of steps.
            share: replicas that the data set feeds.
            stride: difference between successive steps. Asynchronous workers take turns.
        """
        elements, size = replica_elements(self.batch_size, share, first_step, steps, stride)

        @tf.autograph.experimental.do_not_convert
        def examples(step, start):
            images, labels = self.batch(step, start, start + size)
            return tf.ensure_shape(images, [size, *images.shape[1:]]), tf.ensure_shape(labels, [size])

        return without_autotuning(elements.map(examples, num_parallel_calls=2, deterministic=True).prefetch(4))


class EvaluationOrder:
    """Order of batches that contain each of `count` images once. Padding of the last batch has weight 0."""

    def __init__(self, count: int, batch_size: int):
        self.count = count
        self.batch_size = batch_size

    @property
    def steps(self) -> int:
        """Number of global batches that contain all images."""
        return -(-self.count // self.batch_size)

    def rows(self, share: Share, first: Int, steps: int | None) -> tuple[tf.data.Dataset, int]:
        """Return a data set of (indices, weights), one element for each replica in turn, and the size of an element."""
        elements, size = replica_elements(self.batch_size, share, first, self.steps if steps is None else steps)

        @tf.autograph.experimental.do_not_convert
        def rows(step, start):
            positions = step * self.batch_size + start + tf.range(size, dtype=tf.int64)
            indices = tf.minimum(tf.ensure_shape(positions, [size]), self.count - 1)
            return indices, tf.cast(positions < self.count, tf.float32)

        return elements.map(rows), size


class EvaluationBatches(EvaluationOrder):
    """Batches that contain every image once, without augmentation. Padding of the last batch has weight 0.

    Args:
        images: `(n, rows, cols, channels)`, uint8 images that are standardized one by one, or preprocessed float32
            images, which are not changed.
        labels: integers, `(n,)`.
        batch_size: size of the global batch.
    """

    def __init__(self, images: Pixels, labels: Labels, batch_size: int):
        super().__init__(len(images), batch_size)
        self._images = InMemoryImages(images)
        with tf.device("CPU:0"):
            self._labels = tf.constant(labels, tf.int32)

    def dataset(self, share: Share = ALONE, first: Int = 0, steps: int | None = None) -> tf.data.Dataset:
        """Return a `tf.data.Dataset` of (images, labels, weights), with one element for each replica in turn.

        Weights are float32, 0 or 1.

        Args:
            share: replicas that the data set feeds.
            first: first global batch.
            steps: number of global batches (default: all).
        """

        @tf.autograph.experimental.do_not_convert
        def examples(indices, weights):
            return self._images.batch(indices, None), tf.gather(self._labels, indices), weights

        rows, _ = self.rows(share, first, steps)
        return without_autotuning(rows.map(examples, num_parallel_calls=2).prefetch(2))
