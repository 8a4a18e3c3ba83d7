"""Deeper networks from trained ones: blocks that start as the identity."""

import difflib
from collections.abc import Callable, Sequence
from typing import Any

import keras

from idmatters_tf._arguments import positive_integer
from idmatters_tf.surgery._blocks import call_block, insert_block
from idmatters_tf.surgery._carrying import check_norms_can_grow, compile_like
from idmatters_tf.surgery._checks import check_gradients, check_outputs, example_inputs, outputs_of
from idmatters_tf.surgery._copying import ModelCopy, operations, single


def deepen(
    model: keras.Model,
    after: str | Sequence[str],
    block: keras.layers.Layer | Callable[..., keras.layers.Layer] | None = None,
    count: int = 1,
    optimizer: keras.optimizers.Optimizer | None = None,
    *,
    tolerance: float = 0.0,
    data: Any = None,
) -> keras.Model:
    """A copy of a model with residual blocks inserted that change nothing yet: a deeper network that computes the same.

    A block x + f(x) whose branch f ends in a kernel of zeros is the identity, and gradient descent moves that kernel
    from its first step on. Inserted behind a trained layer it adds depth without losing what was learned. With the
    default `tolerance` the deeper model's outputs are those of the old one bit for bit, as long as each operation gives
    the same bits for the same inputs: that is so for `model(x)` in float32 on a CPU. In `predict` and `fit` a compiler
    may fuse the layers around a block otherwise and round otherwise.

    The model itself is left as it is: weights and seeds are copied. Layers that it calls more than once are followed by
    the same blocks each time. Frozen layers stay frozen, and the blocks are trainable: after `model.trainable = False`
    they alone learn. Blocks are named after their layer: those after "conv" are "conv_deeper1", "conv_deeper2", ...

    Source: Chen et al., *Net2Net* (2016, arXiv:1511.05641), whose Net2DeeperNet inserts identity layers; Hardt & Ma,
    *Identity Matters in Deep Learning*, for residual blocks near the identity; Wu et al., *LLaMA Pro* (2024,
    arXiv:2401.02415), for zeroing the last kernel of each branch, and for the finding that zeroing a normalisation's
    gain instead leaves a block without a gradient.

    Args:
        model: a built functional or Sequential model, whose nested models may be entered.
        after: the name of a layer, or several; "nested/layer" for one inside of a nested model, where the layer's name
            alone is not unique.
        block: what is inserted. None: `ResidualConv2D` after images (rank 4), `ResidualDense` after vectors (rank 2,
            or 3 along the last axis), each as wide as its input, the first kernel He's normal distribution and the last
            one zeros. A layer: copies of it. A function: the layers it returns, called with the tensor's shape if it
            takes an argument. Weights of the block are set to zero where that is what it takes to be the identity: as
            few as possible and the last ones, so in a transformer block the output projections of attention and
            feed-forward.
        count: blocks after each layer, in a row.
        optimizer: the optimizer that has trained the model. The new model is compiled with a copy, whose slots for the
            old variables, iterations and learning rate are kept; slots of new variables start at zero. If None, a model
            that was compiled is compiled with a new optimizer of the same settings.
        tolerance: if positive, the blocks keep a start of their own, as `IdentityNormal`'s (the default's kernels are
            then of size 1/(k^2 c)), and the outputs on `data` may differ by so much of the largest one.
        data: a batch of inputs on which outputs and gradients are compared; random ones if None.

    Returns:
        A model of the same class, compiled as the old one was.

    Raises:
        ValueError: where the model is not a functional or Sequential one, a name is none of its layers', the layer has
            several outputs, the block does not fit or cannot be the identity, its gradient is zero (it would never
            learn), a layer cannot be copied, or the optimizer is not the model's.

    Example:

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, name="hidden"), keras.layers.Dense(2)])
    >>> deeper = deepen(model, after="hidden", count=2)
    >>> [layer.name for layer in deeper.layers][:3]
    ['hidden', 'hidden_deeper1', 'hidden_deeper2']
    """
    count = positive_integer("count", count)
    if not tolerance >= 0:
        raise ValueError(f"Argument `tolerance` must be 0 or more. Received: tolerance={tolerance!r}")
    targets = _targets(model, [after] if isinstance(after, str) else list(after))
    taken = {operation.name for _, operation in operations(model)}
    blocks: dict[int, list[keras.layers.Layer]] = {}

    def insert(operation: Any, outputs: Any) -> tuple[Any, list[keras.layers.Layer]]:
        if id(operation) not in targets:
            return outputs, []
        tensor = single(outputs)
        if tensor is None:
            raise ValueError(f"No block can follow {operation.name!r}: it has several outputs.")
        if id(operation) in blocks:
            for each in blocks[id(operation)]:
                tensor = call_block(each, tensor, operation)
        else:
            made = blocks[id(operation)] = []
            for _ in range(count):
                name = _unused(f"{operation.name}_deeper", taken)
                each, tensor = insert_block(block, tensor, operation, name, exact=tolerance == 0)
                made.append(each)
        return keras.tree.pack_sequence_as(outputs, [tensor]), blocks[id(operation)]

    copy = ModelCopy(model, after=insert)
    inserted = {each.name: each for row in blocks.values() for each in row}
    inputs = example_inputs(model, data)
    before = outputs_of(model, inputs, given=data is not None)
    check_outputs(before, outputs_of(copy.model, inputs, given=True), tolerance)
    check_gradients(copy.model, inputs, inserted)
    check_norms_can_grow(optimizer or getattr(model, "optimizer", None), inserted)
    compile_like(copy.model, model, copy.variables, optimizer)
    return copy.model


def _targets(model: keras.Model, names: list[str]) -> set[int]:
    """The `id` of each operation that is named."""
    if not names:
        raise ValueError("Argument `after` must name at least one layer. Received: none")
    known = list(operations(model))
    found: set[int] = set()
    for name in names:
        matches = [operation for path, operation in known if path == name]
        matches = matches or [operation for _, operation in known if operation.name == name]
        if len(matches) > 1:
            paths = [path for path, operation in known if operation.name == name]
            raise ValueError(f"Argument `after`: there are several layers {name!r}. Name one of {', '.join(paths)}.")
        if not matches:
            near = difflib.get_close_matches(str(name), [path for path, _ in known], n=3, cutoff=0.3)
            hint = f" Did you mean {', '.join(near)}?" if near else ""
            raise ValueError(f"Argument `after`: {model.name!r} has no layer {name!r}.{hint}")
        if id(matches[0]) in found:
            raise ValueError(f"Argument `after` names the layer {name!r} twice. Use `count` for several blocks.")
        found.add(id(matches[0]))
    return found


def _unused(stem: str, taken: set[str]) -> str:
    number = 1
    while f"{stem}{number}" in taken:
        number += 1
    taken.add(f"{stem}{number}")
    return f"{stem}{number}"
