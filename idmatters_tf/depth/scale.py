"""Scale of residual branches with the depth of a model, and of the steps of their weights."""

import itertools
import weakref
from typing import Any

import keras
from keras import ops

from idmatters_tf._arguments import positive_integer
from idmatters_tf._keras_internals import inner_optimizer, layers_within, own_trainable_variables
from idmatters_tf._keras_types import Tensor
from idmatters_tf.branches.named import LastNames
from idmatters_tf.branches.search import Branch, count_sums, find_branches
from idmatters_tf.depth._scaled_optimizers import DepthScaling, ScaledWeight, Use, make_scaled

_scaled_models: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def scale_depth(
    model: keras.Model,
    base: int | keras.Model,
    optimizer: keras.optimizers.Optimizer | str,
    alpha: float = 1.0,
    *,
    last: LastNames | None = None,
) -> keras.optimizers.Optimizer:
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

    Sums are found along the graph of the model: `keras.layers.Add`, `Subtract`, `+` and `-` of x and tensors that are
    computed from it. Last weights are the last kernel and bias of a branch, the gain and offset of a normalization at
    its end, or a trained factor. Only layers that pass a positive factor on may follow: dropout, reshapes, pooling,
    rectifiers and sums. Blocks inside of layers are known for this package and for KerasHub: a transformer layer
    contains two sums. For other layers, name the last weights by `last`. Sums whose skip is not x, such as a
    projection, are not counted and not scaled, except in the layers of this package. One warning names them.

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
        last: dict from blocks to their last weights, where they cannot be found along the graph. A key is the name of
            a layer or of an addition, or a class of layers. A value is the name of a layer or a variable in the block,
            or an attribute of the layer; a tuple of names for one sum with several of them; a list with an entry for
            each sum of a layer with several sums; or None for a layer without residual sums, or an addition that is
            none. For a layer at the end of a branch, such as a trained factor, the value names its weights, and an
            empty tuple says that it passes a positive factor on, as dropout of paths does.

    Returns:
        A new optimizer of a subclass of the given one, with the same settings. `optimizer.depth_scaling.table()` lists
        the weights and their factors. It is saved with the model. `import idmatters_tf.depth` before loading the file.

    Raises:
        ValueError: for another optimizer, for a model without blocks, for branches whose last weights are unknown, as
            with an activation at the end, for layers from elsewhere that may contain sums and are not in `last`, for a
            normalization after the sums, for weights shared by blocks, for constraints, penalties of activations, and
            penalties other than L2 on the weights of blocks, and for a model that has been scaled before.

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
    inner: Any = inner_optimizer(scaled)
    inner.depth_scaling = scale_branches(model, base, alpha, last=last)
    return scaled


def scale_branches(
    model: keras.Model, base: int | keras.Model, alpha: float = 1.0, *, last: LastNames | None = None
) -> DepthScaling:
    """Multiply the initial values of the last weights of residual branches by (base / sums)^alpha.

    See `scale_depth` for the arguments and errors. Returns the argument `depth_scaling` of the optimizer.
    """
    compiled: keras.optimizers.Optimizer | None = getattr(model, "optimizer", None)
    if model in _scaled_models or getattr(compiled and inner_optimizer(compiled), "depth_scaling", None):
        raise ValueError("Argument `model` must not be scaled twice. Build the model again.")
    if not 0.5 <= alpha <= 1:
        raise ValueError(f"Argument `alpha` must be from 0.5 to 1. Received: alpha={alpha!r}")
    if isinstance(base, keras.Model):
        base = count_sums(find_branches(base, last, is_complete=False))
    base = positive_integer("base", base)
    branches = find_branches(model, last)
    for branch in branches:
        _check_penalties(branch)
    blocks = {id(variable): branch.name for branch in branches for variable in branch.variables}
    ends = {id(variable) for branch in branches for variable in itertools.chain(*branch.last)}
    trained = {id(variable) for layer in layers_within(model) for variable in own_trainable_variables(layer)}
    variables = [variable for variable in model.variables if id(variable) in trained]
    weights: list[ScaledWeight] = []
    for variable in variables:
        use: Use = "last" if id(variable) in ends else "inner" if id(variable) in blocks else "other"
        weights.append(ScaledWeight(variable.path, use, blocks.get(id(variable), "")))
    scaling = DepthScaling(base, count_sums(branches), float(alpha), tuple(weights), tuple(variables))
    for branch in branches:
        for variable in itertools.chain(*branch.last):
            value: Tensor = ops.convert_to_tensor(variable)
            variable.assign(ops.cast(scaling.scale, variable.dtype) * value)
    _scaled_models.add(model)
    return scaling


def _check_penalties(branch: Branch) -> None:
    """Raise a ValueError for penalties of activations, constraints on variables, and penalties other than L2."""
    for layer in branch.layers:
        if getattr(layer, "activity_regularizer", None) is not None:
            raise ValueError(
                f"The layer {layer.name!r} of the block {branch.name!r} must have no `activity_regularizer`, which the "
                f"scale would change. Received: {type(layer.activity_regularizer).__name__}. Put it outside of the "
                f"branch."
            )
    for variable in branch.variables:
        regularizer, constraint = getattr(variable, "regularizer", None), getattr(variable, "constraint", None)
        if constraint is not None or not isinstance(regularizer, (keras.regularizers.L2, type(None))):
            kind = type(regularizer if constraint is None else constraint).__name__
            raise ValueError(
                f"The weights {variable.path!r} of the block {branch.name!r} must have no constraint and no penalty "
                f"other than L2, which the scale would change. Received: {kind}. Use `weight_decay` of the optimizer."
            )
