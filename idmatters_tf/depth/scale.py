"""Scale of residual branches with the depth of a model, and of the steps of their weights."""

import itertools
import weakref
from typing import Any

import keras
from keras import ops

from idmatters_tf._arguments import positive_integer
from idmatters_tf._keras_internals import layers_within, own_trainable_variables
from idmatters_tf._keras_types import Structure
from idmatters_tf.depth._branches import count_sums, find_branches
from idmatters_tf.depth._scaled_optimizers import DepthScaling, ScaledWeight, Use, make_scaled

_scaled_models: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def scale_depth(
    model: keras.Model,
    base: int | keras.Model,
    optimizer: keras.optimizers.Optimizer | str,
    alpha: float = 1.0,
    *,
    data: Structure | None = None,
) -> Any:
    """Scale the residual branches of a new model such that the learning rate of a shallow one can be kept.

    With L residual sums in the model, L0 in the shallow one and a = (L0 / L)^alpha, the model is trained as if each sum
    were x + a f(x) instead of x + f(x), with learning rates for which the change of the outputs in a step does not
    depend on L. There is no multiplier in the model: the initial values of the last weights of each branch are
    multiplied by a, and the optimizer has factors for each variable:

        last weights of a branch     steps times L0 / L
        other weights of a branch    gradients divided by a, steps times (L0 / L)^(1 - alpha)

    All other weights are trained as before. Factors apply before clipping by value and by the norm of each variable,
    and before Adam's epsilon. `weight_decay` acts with the unscaled learning rate. L2 penalties of the layers act as in
    the shallow model. For `global_clipnorm`, the squares of the gradients of the blocks count L0 / L times. Kernels of
    `Muon(norm="keep")` turn by the same angle at every depth for alpha = 1.

    Last weights are the last kernel and bias of a branch, or the gain and offset of a normalization at its end, or a
    trained factor, as in ReZero, SkipInit and LayerScale. A transformer layer contains two sums. Sums whose skip is not
    x, such as a projection, are not counted and not scaled, except in the layers of this package.

    Source: Hardt & Ma, *Identity Matters in Deep Learning*, Theorem 2.1: the layers of an optimal deep linear residual
    network differ from the identity by O(1 / L). Dey et al., *CompleteP* (2025), for alpha = 1; Yang et al.,
    *Depth-muP* (2023, arXiv:2310.02244), and Bordelon et al. (2023, arXiv:2309.16620), for alpha = 1/2.

    Args:
        model: built functional or Sequential model that has not been trained, or a KerasHub model. Its last weights
            change.
        base: number L0 of residual sums of the shallow model, or the shallow model itself.
        optimizer: optimizer with the learning rate of the shallow model: `SGD`, `Adam`, `AdamW`, `Nadam`, `Adamax`,
            `Adagrad`, `RMSprop`, `Lion` or `Muon` of Keras, or `Momentum` or `Muon` of this package, also in a
            `LossScaleOptimizer`. It does not change.
        alpha: exponent from 0.5 to 1.
        data: batch of inputs with which the last weights are found; random ones if None.

    Returns:
        A new optimizer of a subclass of the given one, with the same settings. `optimizer.depth_scaling.table()` lists
        the weights and their factors. It is saved with the model. `import idmatters_tf.depth` before loading the file.

    Raises:
        ValueError: for another optimizer, for a model without blocks, for branches that are not proportional to their
            last weights, as with an activation at the end, for a normalization after the sums, for weights shared by
            blocks, for constraints and penalties other than L2 on the weights of blocks, and for a model that has been
            scaled before.

    Example:

    >>> def build(depth):
    ...     inputs = keras.Input((8,))
    ...     x = inputs
    ...     for _ in range(depth):
    ...         x = x + keras.layers.Dense(8)(keras.layers.Dense(16, "relu")(x))
    ...     return keras.Model(inputs, keras.layers.Dense(1)(x))
    >>> model = build(64)
    >>> optimizer = scale_depth(model, base=4, optimizer=keras.optimizers.AdamW(3e-3, weight_decay=0.1))
    >>> model.compile(optimizer, "mse")
    >>> optimizer.depth_scaling.sums, optimizer.depth_scaling.scale
    (64, 0.0625)
    """
    # The model changes last, so that it is the same after an error.
    scaled = make_scaled(keras.optimizers.get(optimizer), model, None)
    getattr(scaled, "inner_optimizer", scaled).depth_scaling = scale_branches(model, base, alpha, data=data)
    return scaled


def scale_branches(
    model: keras.Model, base: int | keras.Model, alpha: float = 1.0, *, data: Structure | None = None
) -> DepthScaling:
    """Multiply the initial values of the last weights of residual branches by (base / sums)^alpha.

    See `scale_depth` for the arguments and errors. Returns the argument `depth_scaling` of the optimizer.
    """
    if model in _scaled_models:
        raise ValueError("Argument `model` must not be scaled twice. Build the model again.")
    if not 0.5 <= alpha <= 1:
        raise ValueError(f"Argument `alpha` must be from 0.5 to 1. Received: alpha={alpha!r}")
    if isinstance(base, keras.Model):
        base = count_sums(find_branches(base, data))
    base = positive_integer("base", base)
    branches = find_branches(model, data)
    blocks = {id(variable): branch.name for branch in branches for variable in branch.variables}
    last = {id(variable) for branch in branches for variable in itertools.chain(*branch.last)}
    weights: list[ScaledWeight] = []
    trained = {id(variable) for layer in layers_within(model) for variable in own_trainable_variables(layer)}
    for variable in (variable for variable in model.variables if id(variable) in trained):
        use: Use = "last" if id(variable) in last else "inner" if id(variable) in blocks else "other"
        weights.append(ScaledWeight(variable.path, use, blocks.get(id(variable), "")))
        if use != "other":
            _check_penalty(variable, weights[-1].block)
    scaling = DepthScaling(base, count_sums(branches), float(alpha), tuple(weights))
    for branch in branches:
        for variable in itertools.chain(*branch.last):
            value: Any = ops.convert_to_tensor(variable)
            variable.assign(ops.cast(scaling.scale, variable.dtype) * value)
    _scaled_models.add(model)
    return scaling


def _check_penalty(variable: Any, block: str) -> None:
    """Raise a ValueError for a constraint on a variable, and for a penalty other than L2."""
    if variable.constraint is not None or not isinstance(variable.regularizer, (keras.regularizers.L2, type(None))):
        kind = type(variable.regularizer if variable.constraint is None else variable.constraint).__name__
        raise ValueError(
            f"The weights {variable.path!r} of the block {block!r} must have no constraint and no penalty other than "
            f"L2, which the scale would change. Received: {kind}. Use `weight_decay` of the optimizer."
        )
