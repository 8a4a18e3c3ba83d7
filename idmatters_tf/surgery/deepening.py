"""Insertion of residual blocks that start as the identity."""

import difflib
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_args

import keras

from idmatters_tf._arguments import check_choice, positive_integer
from idmatters_tf._keras_internals import strategy_scope
from idmatters_tf._keras_types import Structure
from idmatters_tf.surgery._blocks import call_block, insert_block
from idmatters_tf.surgery._carrying import check_norms_can_grow, compile_like
from idmatters_tf.surgery._checks import (
    check_gradients,
    check_not_quantized,
    check_outputs,
    check_ranges,
    compute_outputs,
    example_inputs,
)
from idmatters_tf.surgery._configured import ConfiguredModel
from idmatters_tf.surgery._copying import ModelCopy, operations, single_tensor
from idmatters_tf.surgery.insertion import Init, insert_layers

Model = TypeVar("Model", bound=keras.Model)


def deepen(
    model: Model,
    after: str | int | Sequence[str | int],
    block: keras.layers.Layer | Callable[..., keras.layers.Layer] | None = None,
    count: int = 1,
    optimizer: keras.optimizers.Optimizer | None = None,
    *,
    last: str | Sequence[str] = (),
    init: Init = "zero",
    tolerance: float = 0.0,
    data: Structure | None = None,
) -> Model:
    """Return a copy of a model with residual blocks inserted that start as the identity.

    A block x + f(x) whose branch f ends in a kernel of zeros is the identity. Gradient descent moves this kernel from
    the first step on, and all other kernels from the second. Outputs and gradients are checked before the model is
    returned. With the default `tolerance`, `model(x)` in float32 on a CPU is equal bit for bit. In `predict` and `fit`
    the compiler may fuse operations around a block differently and change the rounding. A call costs two forward passes
    and one backward pass on a small batch, and the memory of a second model.

    The model itself does not change: weights, seeds, vocabularies and recurrent states are copied. Shared layers are
    followed by the same blocks at each call. Several inputs and outputs, masks, `keras.ops`, preprocessing layers and
    `training=False` are preserved. Frozen layers stay frozen and inserted blocks are trainable: after
    `model.trainable = False` only the blocks are trained. Blocks after "conv" are named "conv_deeper1",
    "conv_deeper2", ... Outputs keep their names for the losses and metrics of `compile`. A model loaded from a file
    names its outputs after their last layers.

    A KerasHub backbone or task is built again from its configuration with more layers, as a model of the same class:
    `generate`, caches, presets, preprocessor, LoRA and the weights of all old layers are kept. Each new layer is a copy
    of the layer before it, with zeros in the output projections of attention and feed-forward. Old layers keep their
    kind: lists with an entry for each layer get further entries, and where the class derives the kind from the number
    of the layer, as Gemma's local and global attention, `count` must be a multiple of the period.

    Source: Chen et al., *Net2Net* (2016, arXiv:1511.05641), whose Net2DeeperNet inserts identity layers; Hardt & Ma,
    *Identity Matters in Deep Learning*, for residual blocks near the identity; Wu et al., *LLaMA Pro* (2024,
    arXiv:2401.02415), for zeroing the last kernel of each branch, and for the finding that a block with a
    normalization gain of zero has no gradient.

    Args:
        model: built functional or Sequential model, possibly with nested models, or a KerasHub backbone or task.
        after: name of a layer, or several. "nested/layer" for a layer of a nested model if its name is not unique. For
            KerasHub's models, numbers of layers, "every 2nd" (or another number), or "interleaved": after each layer.
        block: None for `ResidualConv2D` after images (rank 4) and `ResidualDense` after vectors (rank 2, or 3 along the
            last axis), as wide as the input, with He's normal distribution for the first kernel and zeros for the last.
            The axis of the channels is given by the layer's `data_format`, or by Keras' setting for layers without it.
            Otherwise a layer to copy, or a function that returns a layer for the tensor's shape. The layer must compute
            x + f(x) and have a `get_config`: one of this package, one of KerasHub's blocks, a functional model of sums,
            or another one that is the identity as it is or whose last weights `last` names. The last weights of its
            branches are set to zero. In a transformer block these are the output projections of attention and
            feed-forward.
        count: number of blocks after each layer.
        optimizer: optimizer that has trained the model. The new model is compiled with a copy that keeps the slots of
            old variables, iterations, learning rate and loss scale. Slots of new variables start at zero, so Adam's
            first steps for them are longer, up to 6.6 learning rates for a constant gradient. Muon preserves norms and
            requires a block such as `ResidualConv2D(filters, branch_scale=0.0, kernel_initializer="he_normal")`.
            `MultiOptimizer` is not supported. If None, a compiled model is compiled with a new optimizer of the same
            settings.
        last: names of the last weights of the branches of `block`: attributes, layers or variables in it.
        init: for KerasHub's models, "zero" or "copy": layers that are not the identity but copies with all weights, as
            in depth up-scaling (Kim et al., *SOLAR 10.7B*, 2023). Layers with a normalization after the sum, as BERT's,
            require "copy".
        tolerance: if positive, the blocks keep their own initial weights (kernels of size 1/(k^2 c) for the default
            block), and the outputs on `data` may differ by this fraction of the largest one.
        data: batch of inputs for the checks of outputs and gradients. Random inputs if None.

    Returns:
        A model of the same class. It is compiled if the model was compiled or an optimizer is passed.

    Raises:
        ValueError: if the model is not a built functional or Sequential model with the constructor of `keras.Model`, if
            a name is unknown, if a layer has several outputs or integer outputs, if it returns an output of the model
            with a range, as by softmax, sigmoid or tanh, if the model is quantized, if old layers would change their
            kind, if a block does not fit, drops a mask, cannot be the identity or has no gradient, if a layer cannot be
            copied (incomplete `get_config`, lambdas, variables shared between layers), or if the optimizer belongs to
            another model.

    Example:

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, name="hidden"), keras.layers.Dense(2)])
    >>> deeper = deepen(model, after="hidden", count=2)
    >>> [layer.name for layer in deeper.layers][:3]
    ['hidden', 'hidden_deeper1', 'hidden_deeper2']
    """
    with strategy_scope(model):
        return _deepen(model, after, block, count, optimizer, last, init, tolerance, data)


def _deepen(
    model: Model,
    after: str | int | Sequence[str | int],
    block: keras.layers.Layer | Callable[..., keras.layers.Layer] | None,
    count: int,
    optimizer: keras.optimizers.Optimizer | None,
    last: str | Sequence[str],
    init: Init,
    tolerance: float,
    data: Structure | None,
) -> Model:
    last = [last] if isinstance(last, str) else list(last)
    count = positive_integer("count", count)
    check_choice("init", init, get_args(Init))
    check_not_quantized(model)
    configured = ConfiguredModel.of(model)
    if configured is not None:
        if block is not None or tolerance:
            raise ValueError(
                f"Arguments `block` and `tolerance` must be left out for a {type(model).__name__}, whose new layers "
                f"are of its own kind. Pass init='zero' or init='copy'."
            )
        return insert_layers(configured, after, count, init, optimizer, data)
    if init != "zero":
        raise ValueError(
            "Argument `init` must be 'zero' for a model without a number of layers in its configuration. Pass `block`."
        )
    if not tolerance >= 0:
        raise ValueError(f"Argument `tolerance` must be 0 or more. Received: tolerance={tolerance!r}")
    targets = _targets(model, after)
    check_ranges(model, targets)
    taken = {operation.name for _, operation in operations(model)}
    blocks: dict[int, list[keras.layers.Layer]] = {}

    def insert(operation: keras.Operation, outputs: Structure) -> tuple[Structure, list[keras.layers.Layer]]:
        if id(operation) not in targets:
            return outputs, []
        tensor = single_tensor(outputs)
        if tensor is None:
            raise ValueError(f"Layer {operation.name!r} must have a single output to be followed by a block.")
        # The same blocks follow each call of a shared layer.
        row = blocks.setdefault(id(operation), [])
        for inserted in row:
            tensor = call_block(inserted, tensor, operation)
        while len(row) < count:
            name = next(n for n in map(f"{operation.name}_deeper{{}}".format, itertools.count(1)) if n not in taken)
            taken.add(name)
            inserted, tensor = insert_block(block, tensor, operation, name, tolerance == 0, last)
            row.append(inserted)
        return keras.tree.pack_sequence_as(outputs, [tensor]), row

    copy = ModelCopy(model, after=insert)
    variables = {inserted.name: inserted.trainable_variables for row in blocks.values() for inserted in row}
    inputs = example_inputs(model, data)
    before = compute_outputs(model, inputs, given=data is not None)
    check_outputs(before, compute_outputs(copy.model, inputs, given=True), tolerance)
    check_gradients(copy.model, inputs, variables)
    check_norms_can_grow(optimizer or getattr(model, "optimizer", None), copy.model, variables)
    compile_like(copy.model, model, copy.variables, optimizer)
    return copy.model


def _targets(model: keras.Model, after: str | int | Sequence[str | int]) -> set[int]:
    """Return the `id` of each named operation."""
    names: Any = [after] if isinstance(after, str) else after
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"Argument `after` must be the name of a layer or a list of names. Received: after={after!r}")
    paths = list(operations(model))
    targets: set[int] = set()
    for name in names:
        matches = [entry for entry in paths if entry[0] == name] or [entry for entry in paths if entry[1].name == name]
        if len(matches) > 1:
            choices = ", ".join(path for path, _ in matches)
            raise ValueError(f"Argument `after`: there are several layers {name!r}. Pass one of {choices}.")
        if not matches:
            near = difflib.get_close_matches(name, [path for path, _ in paths], n=3, cutoff=0.3)
            hint = f" Did you mean {', '.join(near)}?" if near else ""
            raise ValueError(f"Argument `after`: {model.name!r} has no layer {name!r}.{hint}")
        targets.add(id(matches[0][1]))
    return targets
