"""Reductions over the examples of the global batch, for training steps of one's own."""

from idmatters_tf._keras_types import Tensor


def global_mean(values: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean of values over the examples of the global batch, for reductions in a `train_step` of one's own.

    On several replicas each has the same result, and its gradient is that of the replica's own values: optimizers sum
    the gradients of the replicas. Without several replicas it is the mean of the values::

        loss = global_mean(keras.ops.square(y - y_pred))

    Args:
        values: tensor of shape (N, ...) with a value or more for each example of the part of the batch. A scalar must
            be equal on all replicas, such as a penalty of the weights, and is returned.
        weights: tensor of shape (N,) or that of `values`: the result is sum(weights * values) / sum(weights). By
            default all are one.

    Returns:
        Scalar of the type of `values`; 0 if the sum of the weights is 0.

    Raises:
        ValueError: a scalar differs between the replicas. `fit` raises it.
    """
    import tensorflow as tf

    from idmatters_tf._keras_internals.replicas.collectives import (
        SEVERAL,
        check_equal,
        count_replicas,
        has_part,
        scale_gradient,
        sum_over_replicas,
    )

    tensor: Tensor = tf.convert_to_tensor(values)
    is_part = has_part()
    if not len(tensor.shape):
        message = f"{SEVERAL}global_mean received other scalars on each. Pass the values of the examples."
        return scale_gradient(check_equal(tensor, message), 1 / count_replicas()) if is_part else tensor
    factors: Tensor = tf.ones((), tensor.dtype) if weights is None else tf.cast(weights, tensor.dtype)
    factors = factors[(..., *[tf.newaxis] * (len(tensor.shape) - len(factors.shape)))]
    factors = tf.broadcast_to(factors, tf.shape(tensor))
    sums = tf.stack([tf.reduce_sum(tensor * factors), tf.reduce_sum(factors)])
    total, count = tf.unstack(sum_over_replicas(sums) if is_part else sums)
    return tf.math.divide_no_nan(total, count)
