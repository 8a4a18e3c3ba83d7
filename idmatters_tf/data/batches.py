"""Which images, in which order, augmented how: a pure function of (seed, step).

Any batch can be computed alone, at any time, on any worker. So a resumed run sees exactly what an uninterrupted one
would have seen, and each replica computes its share of the global batch and nothing else.

Training walks through one endless sequence of positions: position p belongs to epoch p // n and is the (p % n)-th of
that epoch's own permutation. Step s takes the positions from s * batch to (s + 1) * batch; a batch may span two epochs.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from idmatters_tf.data.augment import CropAndFlip, InMemoryImages, Pixels
from idmatters_tf.data.protocols import ALONE, Int, Share

Labels: TypeAlias = NDArray[np.integer[Any]] | Sequence[int]

# Keep the random numbers of the permutation, the augmentation and cutout apart.
_ORDER, _AUGMENTATION, _CUTOUT = 1, 2, 3


def shuffled(positions: tf.Tensor, count: int, seed: int) -> tf.Tensor:
    """Which of `count` images is at each position of the endless sequence: each epoch is its own permutation.

    Args:
        positions: int64, `(n,)`.
        count: of the images.
        seed: a non-negative integer below 2^32.

    Returns:
        int64, `(n,)`, in [0, count).
    """
    epochs = positions // count
    seeds = tf.stack([tf.fill(tf.shape(epochs), tf.cast(seed, tf.int64)), epochs], axis=1)
    seeds = tf.cast(tf.concat([seeds, tf.fill([tf.shape(epochs)[0], 1], tf.cast(_ORDER, tf.int64))], 1), tf.uint32)
    # The raw operation: the Python wrapper mishandles a batch of seeds.
    return tf.raw_ops.RandomIndexShuffle(
        index=positions % count,  # pyright: ignore[reportOperatorIssue]
        seed=seeds,
        max_index=tf.fill(tf.shape(positions), tf.cast(count - 1, tf.int64)),
    )


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The data set without `tf.data`'s tuning of itself, which has nothing to choose in the data sets made here.

    The end of an iterator waits for the thread that tunes it, and this thread may miss that it is to end and sleep on
    for as long as until its next attempt, a minute in long runs (TensorFlow 2.21).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


class TrainBatches:
    """The training batches of a data set.

    Args:
        images: uint8, `(n, rows, cols, channels)`, which are standardised one by one behind the augmentation; or
            float32, preprocessed already, which are only augmented.
        labels: integers, `(n,)`.
        batch_size: of the global batch.
        seed: a non-negative integer below 2^32.
        augmentation: a value of `idmatters_tf.data.augment.AUGMENTATIONS`.
    """

    def __init__(
        self,
        images: Pixels,
        labels: Labels,
        batch_size: int,
        seed: int = 0,
        augmentation: CropAndFlip | None = None,
    ):
        if batch_size < 1:
            raise ValueError(f"Argument `batch_size` must be positive. Received: batch_size={batch_size}")
        if not 0 <= seed < 2**32:
            raise ValueError(f"Argument `seed` must lie in 0..2^32-1. Received: seed={seed}")
        self.batch_size = batch_size
        self.seed = seed
        self._images = InMemoryImages(images, augmentation)
        with tf.device("CPU:0"):
            self._labels = tf.constant(labels, tf.int32)
            if augmentation is not None and augmentation.flips == "alternate":
                first = np.random.default_rng(seed).integers(0, 2, len(labels), dtype=np.int32)
                self._first_flips = tf.constant(first)

    def indices(self, positions: tf.Tensor) -> tf.Tensor:
        """The image at each position of the endless sequence: int64 to int64, of the same shape `(count,)`."""
        return shuffled(positions, self._images.count, self.seed)

    def batch(self, step: Int, start: Int = 0, stop: Int | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """The examples from `start` to `stop` of the global batch of a step.

        Args:
            step: an int64 scalar, 0 for the first.
            start, stop: integers or int64 scalars within the batch; all of it by default.

        Returns:
            The images, float32 `(stop - start, rows, cols, channels)`, and labels, int32 `(stop - start,)`.
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
        return self._images.standardized(indices, draws), tf.gather(self._labels, indices)

    def _draws(self, step, columns, purpose):
        """Random numbers for the whole batch, which are then cut, so that a share gets those that the whole gets."""
        key = tf.stack([tf.constant((self.seed << 2) + purpose, tf.int64), step])
        return tf.random.stateless_uniform([self.batch_size, columns], key, 0, 1 << 30, tf.int32)

    def dataset(self, first_step: Int, steps: int, share: Share = ALONE, stride: int = 1) -> tf.data.Dataset:
        """The batches of `steps` steps as a `tf.data.Dataset`, one element for each replica in turn.

        Args:
            first_step: the step to begin with, an integer or an int64 scalar.
            steps: how many.
            share: the replicas to feed.
            stride: from one step to the next; asynchronous workers take turns.
        """
        if self.batch_size % share.replicas:
            raise ValueError(
                f"The global batch must be divided evenly by the replicas. Received: batch size {self.batch_size}, "
                f"{share.replicas} replicas. Choose a multiple of {share.replicas}."
            )
        size = self.batch_size // share.replicas

        @tf.autograph.experimental.do_not_convert
        def element(number):
            start = (share.first + number % share.count) * size
            images, labels = self.batch(first_step + number // share.count * stride, start, start + size)
            return tf.ensure_shape(images, [size, *images.shape[1:]]), tf.ensure_shape(labels, [size])

        numbers = tf.data.Dataset.range(steps * share.count)
        return untuned(numbers.map(element, num_parallel_calls=2, deterministic=True).prefetch(4))


class EvaluationBatches:
    """Every image once, without augmentation; the examples that fill up the last batch have weight 0.

    Args:
        images: uint8, `(n, rows, cols, channels)`, which are standardised one by one; or float32, preprocessed already,
            which are taken as they are.
        labels: integers, `(n,)`.
        batch_size: of the global batch.
    """

    def __init__(self, images: Pixels, labels: Labels, batch_size: int):
        self.batch_size = batch_size
        self._images = InMemoryImages(images)
        with tf.device("CPU:0"):
            self._labels = tf.constant(labels, tf.int32)

    @property
    def steps(self) -> int:
        """How many global batches hold all images."""
        return -(-self._images.count // self.batch_size)

    def dataset(self, share: Share = ALONE, first: Int = 0, steps: int | None = None) -> tf.data.Dataset:
        """A `tf.data.Dataset` of (images, labels, weights), weights float32 in {0, 1}, one element for each replica.

        Args:
            share: the replicas to feed.
            first, steps: the first global batch and how many; all by default.
        """
        size = self.batch_size // share.replicas
        n = self._images.count

        @tf.autograph.experimental.do_not_convert
        def element(number):
            start = (first + number // share.count) * self.batch_size + (share.first + number % share.count) * size
            positions = tf.ensure_shape(start + tf.range(size, dtype=tf.int64), [size])
            indices = tf.minimum(positions, n - 1)
            images = self._images.standardized(indices, None)
            return images, tf.gather(self._labels, indices), tf.cast(positions < n, tf.float32)

        steps = self.steps if steps is None else steps
        return untuned(tf.data.Dataset.range(steps * share.count).map(element, num_parallel_calls=2).prefetch(2))
