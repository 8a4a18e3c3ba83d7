"""Losses of the global batch.

The values of a loss of Keras are gathered before Keras reduces them, with their masks and weights. Losses of the user,
and those that couple the examples, are computed from gathered labels and outputs.
"""

import keras

from idmatters_tf._keras_internals.keras_source import loss_functions
from idmatters_tf._keras_internals.losses import is_separable, loss_function
from idmatters_tf._keras_internals.replicas.changes import hook
from idmatters_tf._keras_internals.replicas.collectives import gather, is_replica, on_global_batch, step


@hook(keras.losses.Loss, "__call__", "losses that couple the examples are computed on the gathered batch")
def _call(original, self, y_true, y_pred, sample_weight=None):
    arguments = getattr(self, "_fn_kwargs", {})
    if step.batch == "part" and not is_separable(loss_function(self), arguments, y_true, y_pred):
        original = on_global_batch(original)
    return original(self, y_true, y_pred, sample_weight)


@hook(loss_functions, "reduce_weighted_values", "values of losses are gathered before they are reduced")
def _reduce_weighted_values(original, values, sample_weight=None, mask=None, **options):
    if step.batch == "part":
        if sample_weight is not None:
            sample_weight = keras.ops.convert_to_tensor(sample_weight)
        values, sample_weight, mask = gather((values, sample_weight, mask), has_masks=False)
    return original(values, sample_weight=sample_weight, mask=mask, **options)


@hook(loss_functions, "scale_loss_for_distribution", "the loss of the global batch needs no factor")
def _scale(original, value):
    return value if step.batch is not None and is_replica() else original(value)


@hook(loss_functions, "unscale_loss_for_distribution", "the loss of the global batch needs no factor")
def _unscale(original, value):
    return value if step.batch is not None and is_replica() else original(value)
