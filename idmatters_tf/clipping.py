"""Adaptive gradient clipping: each unit's gradient is bounded by a fraction of the unit's own norm."""

from collections.abc import Sequence

import keras
from keras import ops

from idmatters_tf._keras_types import Tensor


def clip_units(
    gradients: Sequence[Tensor],
    weights: Sequence[Tensor],
    bound: float,
    epsilon: float = 1e-3,
    which: Sequence[bool] | None = None,
) -> list[Tensor]:
    """Bounds the gradient of each unit relative to its weights: `g * min(1, bound * max(||w||, epsilon) / ||g||)`.

    A unit is what computes one output: of a kernel, all axes but the last. Vectors (biases, gains) and scalars are one
    unit each, as in the authors' code. Norms are Frobenius'.

    Source: Brock et al., *High-performance large-scale image recognition without normalization* (arXiv 2102.06171),
    Eq. 3. They leave the last layer out, see `precedes_last_layer`, and take a bound of 0.01 for batches of 4096;
    smaller batches allow larger ones.

    Args:
        gradients: one for each of the weights, of its shape.
        weights: tensors or variables.
        bound: positive, of `||g|| / ||w||`.
        epsilon: the norm that weights near 0 are taken to have, so that they can leave it.
        which: whether each gradient is clipped or returned as it is; all are clipped by default.

    Returns:
        The gradients, clipped.
    """
    if not bound > 0:
        raise ValueError(f"Argument `bound` must be positive. Received: bound={bound}")
    which = [True] * len(gradients) if which is None else which
    given = zip(gradients, weights, which, strict=True)
    return [_clipped(gradient, weight, bound, epsilon) if chosen else gradient for gradient, weight, chosen in given]


def precedes_last_layer(model: keras.Model) -> list[bool]:
    """For each of the model's trainable variables, whether it belongs to another layer than the last one with weights.

    Where that one is frozen, all of them do.
    """
    weighted = [layer for layer in model.layers if layer.weights]
    last = {id(variable) for layer in weighted[-1:] for variable in layer.trainable_weights}
    return [id(variable) not in last for variable in model.trainable_variables]


def _clipped(gradient: Tensor, weight: Tensor, bound: float, epsilon: float) -> Tensor:
    largest: Tensor = ops.maximum(_unit_norms(ops.convert_to_tensor(weight)), epsilon)
    # A gradient of 0 stays 0.
    return gradient * ops.minimum(1.0, bound * largest / ops.maximum(_unit_norms(gradient), 1e-30))


def _unit_norms(tensor: Tensor) -> Tensor:
    axes = tuple(range(len(tensor.shape) - 1)) if len(tensor.shape) > 1 else None
    norms: Tensor = ops.sqrt(ops.sum(ops.square(tensor), axis=axes, keepdims=True))
    return norms
