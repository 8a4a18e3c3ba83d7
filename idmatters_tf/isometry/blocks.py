"""Residual blocks of a model, detected in its graph or named by the user."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from idmatters_tf._keras_internals import Call, graph_calls, is_addition
from idmatters_tf._names import make_unique_name
from idmatters_tf.layers import (
    BasicBlock2D,
    LinearResidual,
    ResidualConv2D,
    ResidualDense,
    ScaledResidualConv2D,
    ShortcutUnit,
)

RESIDUAL_LAYERS = (BasicBlock2D, LinearResidual, ResidualConv2D, ResidualDense, ScaledResidualConv2D, ShortcutUnit)


@dataclasses.dataclass(frozen=True)
class Block:
    """A part of a model with one input and one output.

    Masks are not inputs: their values in the model are held fixed.

    Attributes:
        name: name of the layer, or "FROM to TO".
        start, end: symbolic tensors at the two ends.
        calls: calls of layers and operations between them, in order of execution.
    """

    name: str
    start: Any
    end: Any
    calls: tuple[Call, ...]

    @property
    def layer(self) -> Any:
        """Layer of a block that is a single layer, otherwise None."""
        return self.calls[0].operation if len(self.calls) == 1 else None

    @property
    def data_format(self) -> str:
        """Data format of the images in the block: that of its first layer with one, or Keras' setting."""
        formats = [getattr(call.operation, "data_format", None) for call in self.calls]
        return next(filter(None, formats), keras.config.image_data_format())


def find_blocks(model: keras.Model, blocks: Any = None) -> list[Block]:
    """Return the blocks of a model, in order of execution.

    Args:
        model: built functional or Sequential model.
        blocks: None for all residual layers of this package and all sums x + f(x), in which one term is computed from
            the other. Otherwise a list of layer names (from the layer's input to its output) and of pairs of names
            (from the output of the first layer, or from the `keras.Input` of that name, to the output of the second),
            or a dict of these under names of your own. A layer of a nested model is "nested/layer", or "layer" if the
            name is unique.

    Raises:
        ValueError: if the model has no graph or no blocks, if a name is unknown, or if the output of a block depends on
            more than its one input.
    """
    calls = graph_calls(model)
    if calls is None:
        raise ValueError(
            f"Argument `model` must be a built functional or Sequential model. Received: {type(model).__name__} "
            f"{model.name!r}. Build it on an input shape, or build a functional model from its layers."
        )
    if blocks is None:
        if not (detected := residual_blocks(model)):
            raise ValueError(
                f"The model {model.name!r} has no residual layers of this package and no sums x + f(x). Name its "
                f"blocks as blocks=[layer, ...] or blocks=[(from, to), ...]. Its layers: {_names(calls)}"
            )
        return detected
    if isinstance(blocks, Mapping):
        return [_make_block(entry, calls, str(name)) for name, entry in blocks.items()]
    return [_make_block(entry, calls) for entry in blocks]


def residual_blocks(model: keras.Model) -> list[Block]:
    """Return the blocks that `find_blocks` detects, or an empty list for a model without blocks or without a graph."""
    calls = graph_calls(model) or []
    ancestors: dict[int, set[int]] = {}
    blocks: dict[str, Block | None] = {}
    for call in calls:
        above = {id(tensor) for tensor in call.inputs}.union(*(ancestors.get(id(t), set()) for t in call.inputs))
        ancestors |= {id(output): above for output in call.outputs}
        start = None
        if isinstance(call.operation, RESIDUAL_LAYERS):
            start = call.inputs[0]
        elif is_addition(call.operation) and len(call.inputs) == 2:
            for skip, branch in (call.inputs, call.inputs[::-1]):
                if id(skip) in ancestors.get(id(branch), set()):
                    start = skip
        if start is not None:
            # A shared layer is called several times.
            name = make_unique_name(call.name, blocks)
            blocks[name] = None
            # A sum whose branch also depends on tensors computed before x is not a block.
            with contextlib.suppress(ValueError):
                blocks[name] = between(name, start, call.outputs[0], calls)
    return [block for block in blocks.values() if block is not None]


def between(name: str, start: Any, end: Any, calls: Sequence[Call]) -> Block:
    """Return the block from one symbolic tensor to another.

    Args:
        name: name of the block.
        start: symbolic tensor at the beginning.
        end: symbolic tensor at the end.
        calls: calls of the whole model, see `graph_calls`.

    Raises:
        ValueError: if the second tensor cannot be computed from the first alone.
    """
    needed, used = {id(end)}, []
    for call in reversed(calls):
        if any(id(tensor) in needed for tensor in call.outputs) and id(start) not in map(id, call.outputs):
            used.append(call)
            needed |= {id(tensor) for tensor in call.inputs}
    made = {id(start)} | {id(tensor) for call in used for tensor in call.outputs}
    if not used or id(start) not in needed or not needed <= made:
        reason = (
            "it also depends on the model's input by a path around its start"
            if used and id(start) in needed
            else "its output is not computed from its input"
        )
        raise ValueError(
            f"The block {name!r} is not a function of its input alone: {reason}. Start it where its paths part."
        )
    return Block(name, start, end, tuple(reversed(used)))


def _make_block(entry: Any, calls: Sequence[Call], name: str | None = None) -> Block:
    if isinstance(entry, str):
        call = _find_call(entry, calls)
        # Self-attention receives one tensor twice.
        inputs = {id(tensor) for tensor in call.inputs}
        if len(inputs) != 1 or len(call.outputs) != 1:
            raise ValueError(
                f"Argument `blocks` must name layers with one input and one output. Received: {entry!r} with "
                f"{len(inputs)} and {len(call.outputs)}. Name a pair of layers around it."
            )
        return between(name or entry, call.inputs[0], call.outputs[0], calls)
    first, last = entry
    computed = {id(tensor) for call in calls for tensor in call.outputs}
    inputs = [tensor for call in calls for tensor in call.inputs if id(tensor) not in computed]
    starts = [tensor for tensor in inputs if tensor.name == first]
    start = starts[0] if starts else _find_call(first, calls).outputs[0]
    return between(name or f"{first} to {last}", start, _find_call(last, calls).outputs[0], calls)


def _find_call(name: str, calls: Sequence[Call]) -> Call:
    named = [call for call in calls if call.name == name]
    named = named or [call for call in calls if call.name.endswith(f"/{name}")]
    if len(named) == 2 and [call.way for call in named] == ["in", "out"] and named[0].name == named[1].name:
        # Entry and exit of a nested model.
        return dataclasses.replace(named[0], outputs=named[1].outputs)
    if len(named) == 1:
        return named[0]
    if named:
        raise ValueError(
            f"Argument `blocks` must name layers uniquely that are called once. Received: {name!r}, which names the "
            f"calls {', '.join(call.name for call in named)}."
        )
    raise ValueError(
        f"Argument `blocks` names {name!r}, which is not a layer of the model (layers inside other layers, and of "
        f"models that are called several times, cannot be named). Its layers: {_names(calls)}"
    )


def _names(calls: Sequence[Call], most: int = 20) -> str:
    names = list(dict.fromkeys(call.name for call in calls))
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
