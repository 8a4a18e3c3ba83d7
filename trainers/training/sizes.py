"""Training batches whose images are scaled to growing sizes."""

from collections.abc import Sequence

import tensorflow as tf

from idmatters_tf._keras_types import Dataset
from idmatters_tf._tensorflow_internals.pipelines import without_autotuning
from idmatters_tf.data.protocols import ALONE, Int, Share, TrainBatchSource


class ScaledBatches:
    """Batches of another source, scaled to each of `sizes`: pairs of rows or columns and the step at which they end.

    After the last one, images have their full size.
    """

    def __init__(self, source: TrainBatchSource, sizes: Sequence[tuple[int, int]]):
        self._source, self._sizes, self._ends = source, [size for size, _ in sizes], [end for _, end in sizes]

    def batch(self, step: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the batch of a step."""
        images, labels = self._source.batch(step)
        return self._scale(images, tf.cast(step, tf.int64)), tf.convert_to_tensor(labels)

    def dataset(self, first_step: Int, steps: int, share: Share = ALONE, stride: int = 1) -> Dataset:
        """Return the batches of `steps` steps, with one element for each replica in turn."""
        first_step = tf.cast(first_step, tf.int64)

        @tf.autograph.experimental.do_not_convert
        def scale(number, batch):
            images, labels = batch
            return self._scale(images, first_step + number // share.count * stride), labels

        batches = self._source.dataset(first_step, steps, share, stride)
        numbered = tf.data.Dataset.zip(tf.data.Dataset.range(steps * share.count), batches)
        return without_autotuning(numbered.map(scale, num_parallel_calls=2, deterministic=True).prefetch(2))

    def _scale(self, images, step):
        index = tf.reduce_sum(tf.cast(step >= tf.constant(self._ends, tf.int64), tf.int32))
        scaled = tf.switch_case(index, [*(lambda s=s: resize(images, s) for s in self._sizes), lambda: images])
        # One training step serves all sizes, so that a resumed run computes the same bits.
        return tf.ensure_shape(scaled, [images.shape[0], None, None, images.shape[-1]])


def resize(images: tf.Tensor, size: int) -> tf.Tensor:
    """Scale images `(batch, rows, cols, channels)`, and standardize them again: scaling reduces the variance."""
    return tf.image.per_image_standardization(tf.image.resize(images, (size, size), antialias=True))
