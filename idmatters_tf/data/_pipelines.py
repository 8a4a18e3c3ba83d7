"""Pipelines of `tf.data` whose elements are the shares of replicas in global batches."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from idmatters_tf._tensorflow_internals.pipelines import without_autotuning
from idmatters_tf.data.protocols import Int, Share

# Maps (step, start, stop) to arrays of `stop - start` examples.
PureBatch: TypeAlias = Callable[[int, int, int], tuple[NDArray[np.generic], ...]]


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


def computed_batches(
    batch: PureBatch, batch_size: int, share: Share, first_step: Int, steps: int, stride: int = 1
) -> tf.data.Dataset:
    """Return batches of NumPy arrays as a data set, with one element for each replica in turn.

    Args:
        batch: pure function of (step, start, stop) that returns a tuple of arrays of `stop - start` examples.
        batch_size: size of the global batch.
        share: replicas that the data set feeds.
        first_step: first step, an integer or int64 scalar.
        steps: number of steps.
        stride: difference between successive steps.
    """
    elements, size = replica_elements(batch_size, share, first_step, steps, stride)
    example = batch(0, 0, 1)

    def compute(step, start):
        return batch(int(step), int(start), int(start) + size)

    @tf.autograph.experimental.do_not_convert
    def arrays(step, start):
        # `enable_op_determinism` runs a stateful map on one core.
        computed = tf.numpy_function(compute, [step, start], [array.dtype for array in example], stateful=False)
        shapes = [(size, *array.shape[1:]) for array in example]
        return tuple(tf.ensure_shape(array, shape) for array, shape in zip(computed, shapes, strict=True))

    return without_autotuning(elements.map(arrays, num_parallel_calls=2, deterministic=True).prefetch(4))
