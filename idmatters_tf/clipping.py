"""Adaptive gradient clipping, relative to the norms of the weights."""

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
    """Clip the gradient of each unit relative to its weights: `g * min(1, bound * max(||w||, epsilon) / ||g||)`.

    A unit of a kernel is the weights of one output: all axes but the last. A vector (biases, gains) or a scalar is one
    unit, as in the authors' code. Norms are Frobenius norms.

    Source: Brock et al., *High-performance large-scale image recognition without normalization* (arXiv 2102.06171),
    Eq. 3. The authors do not clip the last layer, see `precedes_last_layer`. They use a bound of 0.01 for batches of
    4096; smaller batches allow larger bounds.

    Args:
        gradients: one tensor for each of the weights, of the same shape.
        weights: tensors or variables.
        bound: positive upper bound of `||g|| / ||w||`.
        epsilon: lower bound of the norm of the weights, so that weights of zero are trained.
        which: one boolean per gradient, False to return it unchanged; all are clipped by default.

    Returns:
        The clipped gradients.
    """
    if not bound > 0:
        raise ValueError(f"Argument `bound` must be positive. Received: bound={bound}")
    which = [True] * len(gradients) if which is None else which
    given = zip(gradients, weights, which, strict=True)
    return [_clip(gradient, weight, bound, epsilon) if chosen else gradient for gradient, weight, chosen in given]


def precedes_last_layer(model: keras.Model) -> list[bool]:
    """Return one boolean for each trainable variable of the model: False in the last layer that has weights.

    If the last layer is frozen, all are True.
    """
    weighted = [layer for layer in model.layers if layer.weights]
    last = {id(variable) for layer in weighted[-1:] for variable in layer.trainable_weights}
    return [id(variable) not in last for variable in model.trainable_variables]


def _clip(gradient: Tensor, weight: Tensor, bound: float, epsilon: float) -> Tensor:
    largest: Tensor = ops.maximum(_unit_norms(ops.convert_to_tensor(weight)), epsilon)
    # A gradient of 0 stays 0.
    return gradient * ops.minimum(1.0, bound * largest / ops.maximum(_unit_norms(gradient), 1e-30))


def _unit_norms(tensor: Tensor) -> Tensor:
    axes = tuple(range(len(tensor.shape) - 1)) if len(tensor.shape) > 1 else None
    norms: Tensor = ops.sqrt(ops.sum(ops.square(tensor), axis=axes, keepdims=True))
    return norms
