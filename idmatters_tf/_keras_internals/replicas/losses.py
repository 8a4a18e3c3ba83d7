"""Losses of the global batch.

The values of a loss of Keras are gathered before Keras reduces them, with their masks and weights. Losses of the user,
and those that couple the examples, are computed from gathered labels and outputs.
"""

from typing import Any

import keras

from idmatters_tf._keras_internals.keras_source import LossFunctionWrapper, loss_functions
from idmatters_tf._keras_internals.replicas.changes import hook
from idmatters_tf._keras_internals.replicas.collectives import gather, is_replica, on_global_batch, step

_FUNCTIONS = """
    binary_crossentropy binary_focal_crossentropy categorical_crossentropy categorical_focal_crossentropy
    categorical_generalized_cross_entropy categorical_hinge cosine_similarity hinge huber kl_divergence log_cosh
    mean_absolute_error mean_absolute_percentage_error mean_squared_error mean_squared_logarithmic_error poisson
    sparse_categorical_crossentropy squared_hinge
"""
_CLASSES = """
    BinaryCrossentropy BinaryFocalCrossentropy CategoricalCrossentropy CategoricalFocalCrossentropy
    CategoricalGeneralizedCrossEntropy CategoricalHinge CosineSimilarity Hinge Huber KLDivergence LogCosh
    MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredError MeanSquaredLogarithmicError Poisson
    SparseCategoricalCrossentropy SquaredHinge
"""
# Losses of Keras with a value for each example, which depends on this example only, for outputs of rank 2 or more.
SEPARABLE_FUNCTIONS = tuple(getattr(keras.losses, name) for name in _FUNCTIONS.split())
_SEPARABLE_CLASSES = tuple(getattr(keras.losses, name) for name in _CLASSES.split())
# Their labels have one axis less than their outputs.
_SPARSE = (keras.losses.sparse_categorical_crossentropy, keras.losses.SparseCategoricalCrossentropy)


def is_separable(loss: Any, y_true: Any, y_pred: Any) -> bool:
    """Return True for a loss of Keras that has a value for each example of the labels and outputs."""
    kind = getattr(loss, "fn", None) if type(loss) is LossFunctionWrapper else type(loss)
    is_known = kind in SEPARABLE_FUNCTIONS if type(loss) is LossFunctionWrapper else kind in _SEPARABLE_CLASSES
    return is_known and has_axis_of_values(getattr(loss, "_fn_kwargs", {}), y_true, y_pred, kind in _SPARSE)


def has_axis_of_values(arguments: dict[str, Any], y_true: Any, y_pred: Any, is_sparse: bool) -> bool:
    """Return True if the axis of the values of an example is not that of the examples.

    Args:
        arguments: arguments of a function of Keras, of which "axis" is by default the last one.
        y_true: labels.
        y_pred: outputs.
        is_sparse: True for labels that are the indices of classes.
    """
    ranks = [len(leaf.shape) for leaf in keras.tree.flatten(y_pred)]
    label_ranks = [len(leaf.shape) for leaf in keras.tree.flatten(y_true)]
    axis = arguments.get("axis", -1)
    is_inner = isinstance(axis, int) and all(rank > 1 and axis % rank for rank in ranks)
    return is_inner and all(rank > 0 if is_sparse else rank > 1 for rank in label_ranks)


@hook(keras.losses.Loss, "__call__", "losses that couple the examples are computed on the gathered batch")
def _call(original, self, y_true, y_pred, sample_weight=None):
    if step.batch == "part" and not is_separable(self, y_true, y_pred):
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
