"""What a loss is to this package: values for each example, or one mean over a batch, and how batches are put together.

One principle: the loss is that of all the data as if they were one batch, so that it does not depend on how they are
cut into batches, nor on whether these have equal sizes.
"""

import inspect

import keras
import tensorflow as tf

REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum", "none", None)


class DataLoss:
    """A loss of the labels and the model's outputs, or of the model and the batch.

    Args:
        loss: a Keras loss or its name; a callable `loss(y, outputs)` that returns either a value for each example
            (then the batch is the first axis) or a scalar, the mean over the batch; or a callable whose first
            parameter is called `model`, `loss(model, batch)`, that returns a scalar, the mean over the batch.

    Attributes:
        of_model: whether it takes the model and the batch.
        reduction: how the examples' values become one number: "mean", "sum" or "mean_with_sample_weight".
    """

    def __init__(self, loss):
        if isinstance(loss, str):
            loss = keras.losses.get(loss)
        self._keras = isinstance(loss, keras.losses.Loss)
        if not (self._keras or callable(loss)):
            raise ValueError(
                f"Argument `loss` must be a Keras loss or its name, a callable loss(y, outputs), or a callable "
                f"loss(model, batch). Received: loss={loss!r}"
            )
        # `Loss.__call__` rounds to the loss' own dtype, float32 by default, and reduces batch by batch.
        self._function = loss.call if self._keras else loss
        self.of_model = not self._keras and _first_parameter(loss) == "model"
        reduction = loss.reduction if self._keras else None
        if reduction not in REDUCTIONS:
            raise ValueError(f"Argument `loss` has a reduction that is not known here. Received: {reduction!r}")
        self.reduction = reduction if reduction in ("sum", "mean_with_sample_weight") else "mean"

    def of_batch(self, model, batch):
        """The value of a loss(model, batch), a scalar."""
        value = self._function(model, batch)
        if not tf.is_tensor(value) or value.shape.rank != 0:
            raise ValueError(
                f"Argument `loss`, a callable of the model and the batch, must return a scalar tensor, the mean over "
                f"the batch. Received: {_described(value)}"
            )
        return value

    def of_outputs(self, y, outputs):
        """The values of a loss(y, outputs): (batch,), or a scalar where it reduces by itself."""
        if self._keras:
            dtype = tf.nest.flatten(outputs)[0].dtype
            y = tf.nest.map_structure(lambda part: tf.cast(part, dtype), y)
        values = self._function(y, outputs)
        if not tf.is_tensor(values) or not values.dtype.is_floating:
            raise ValueError(
                f"Argument `loss` must return a tensor of floating-point numbers. Received: {_described(values)}"
            )
        if values.shape.rank is None or values.shape.rank < 2:
            return values
        axes = list(range(1, values.shape.rank))
        return tf.reduce_sum(values, axes) if self.reduction == "sum" else tf.reduce_mean(values, axes)


def split_batch(batch):
    """(x, y, sample_weight) of a batch as `model.fit` takes it; what is not there is None."""
    if not isinstance(batch, (tuple, list)):
        return batch, None, None
    if len(batch) > 3:
        raise ValueError(
            f"Argument `data` must give batches (x, y) or (x, y, sample_weight). Received: {len(batch)} parts. Put "
            f"several inputs into one tuple or dict: ((x1, x2), y)."
        )
    return (*batch, None, None)[:3]


def _first_parameter(function):
    try:
        return next(iter(inspect.signature(function).parameters), None)
    except (TypeError, ValueError):
        return None


def _described(value):
    return f"a tensor of shape {value.shape}, {value.dtype.name}" if tf.is_tensor(value) else repr(value)
