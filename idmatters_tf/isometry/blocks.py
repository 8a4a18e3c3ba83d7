"""Residual blocks of a model, detected in its graph or named by the user."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from idmatters_tf._configured_models import ConfiguredModel
from idmatters_tf._keras_internals import (
    Call,
    find_ancestors,
    graph_calls,
    is_addition,
    is_own_layer,
    layers_within,
    skip_position,
)
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

    Masks are not inputs: their values in the model are held fixed. For layers of layers this also applies to all other
    arguments, such as the sequence of an encoder.

    Attributes:
        name: name of the layer, or "FROM to TO".
        start, end: symbolic tensors at the two ends; None for a layer inside of another layer.
        calls: calls of layers and operations between them, in order of execution; empty for a layer inside of another
            layer.
        inner: layer inside of another layer, otherwise None.
    """

    name: str
    start: Any
    end: Any
    calls: tuple[Call, ...]
    inner: Any = None

    @property
    def layer(self) -> Any:
        """Layer of a block that is a single layer, otherwise None."""
        return self.calls[0].operation if len(self.calls) == 1 else self.inner

    @property
    def variables(self) -> list[Any]:
        """Trainable variables of the block, each once."""
        operations = [call.operation for call in self.calls] or [self.inner]
        variables = [v for operation in operations for v in getattr(operation, "trainable_variables", ())]
        return list({id(variable): variable for variable in variables}.values())

    @property
    def output_operation(self) -> tuple[Any, int]:
        """Layer, or sum of x + f(x), that returns the block's output, and the position of x among its arguments."""
        if self.inner is not None:
            return self.inner, 0
        last = self.calls[-1]
        return last.operation, [id(tensor) for tensor in last.inputs].index(id(self.start))

    @property
    def data_format(self) -> str:
        """Data format of the images in the block: that of its first layer with one, or Keras' setting."""
        formats = [getattr(call.operation, "data_format", None) for call in self.calls]
        return next(filter(None, formats), keras.config.image_data_format())


def find_blocks(model: keras.Model, blocks: Any = None) -> list[Block]:
    """Return the blocks of a model, in order of execution.

    Args:
        model: built functional or Sequential model.
        blocks: None for all residual layers of this package; all sums x + f(x), in which one term is computed from
            the values of the other; layers of layers from elsewhere that map a tensor to one of the same shape, such as
            `keras_hub.layers.TransformerEncoder`, except the branch of a sum; and the repeated layers of KerasHub's
            backbones and tasks. Otherwise a list of layer names (from the layer's input to its output) and of pairs of
            names (from the output of the first layer, or from the `keras.Input` of that name, to the output of the
            second), or a dict of these under names of your own. A layer of a nested model is "nested/layer", or "layer"
            if the name is unique.

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
                f"The model {model.name!r} has no residual layers of this package and no sums x + f(x), nor layers of "
                f"layers that map a tensor to one of the same shape. Name its blocks as blocks=[layer, ...] or "
                f"blocks=[(from, to), ...]. Its layers: {_names(calls)}"
            )
        return detected
    if isinstance(blocks, Mapping):
        return [_make_block(entry, calls, str(name)) for name, entry in blocks.items()]
    return [_make_block(entry, calls) for entry in blocks]


def residual_blocks(model: keras.Model) -> list[Block]:
    """Return the blocks that `find_blocks` detects, or an empty list for a model without blocks or without a graph."""
    calls, repeated = graph_calls(model) or [], _repeated_operations(model)
    ancestors = find_ancestors(calls)
    blocks: dict[str, Block | None] = {}
    composites: list[Block] = []
    for call in calls:
        # A shared layer is called several times.
        name = make_unique_name(repeated.get(id(call.operation), call.name), blocks)
        if inner := _inner_layers(call, repeated):
            blocks |= {repeated[id(layer)]: Block(repeated[id(layer)], None, None, (), layer) for layer in inner}
        elif _is_composite(call, repeated):
            composites.append(Block(name, call.inputs[0], call.outputs[0], (call,)))
            blocks[name] = composites[-1]
        elif (start := _skip(call, ancestors)) is not None:
            blocks[name] = None
            # A sum whose branch also depends on tensors computed before x is not a block.
            with contextlib.suppress(ValueError):
                blocks[name] = between(name, start, call.outputs[0], calls)
    for call in calls:
        if (start := _skip(call, ancestors)) is not None:
            # A single layer of layers between x and f(x) is the branch, or a part of it.
            above = ancestors[id(call.outputs[0])]
            inside = [block for block in composites if id(block.end) in above and id(start) in ancestors[id(block.end)]]
            if len(inside) == 1:
                blocks[inside[0].name] = None
    return [block for block in blocks.values() if block is not None]


def _skip(call: Call, ancestors: Mapping[int, set[int]]) -> Any:
    """Return the input x of a residual layer, or the tensor x of a sum x + f(x), or None for other calls."""
    position = 0 if isinstance(call.operation, RESIDUAL_LAYERS) else skip_position(call, ancestors)
    return None if position is None else call.inputs[position]


def _repeated_operations(model: keras.Model) -> dict[int, str]:
    """Return the names of the repeated layers and sums of KerasHub's backbones in a model by the `id` of each."""
    names: dict[int, str] = {}
    for part in layers_within(model):
        if (configured := ConfiguredModel.of(part)) is not None:
            found = [entry for slot in configured.slots for entry in configured.operations(slot).items()]
            names |= {id(operation): name for name, (operation, _) in found}
    return names


def _inner_layers(call: Call, repeated: Mapping[int, str]) -> list[Any]:
    """Return the repeated layers inside of a layer, or of a model whose calls are not in the graph."""
    if not repeated or call.way is not None or not isinstance(call.operation, keras.layers.Layer):
        return []
    within = layers_within(call.operation)[1:]
    return [layer for layer in within if id(layer) in repeated and not is_addition(layer)]


def _is_composite(call: Call, repeated: Mapping[int, str]) -> bool:
    """Return True for a layer of layers with kernels, or a repeated layer, that maps a tensor to one of its shape."""
    if call.way is not None or is_addition(call.operation) or isinstance(call.operation, RESIDUAL_LAYERS):
        return False
    if len(call.outputs) != 1 or not call.inputs or tuple(call.inputs[0].shape) != tuple(call.outputs[0].shape):
        return False
    if not keras.backend.is_float_dtype(call.inputs[0].dtype):
        return False
    parts = layers_within(call.operation) if is_own_layer(call.operation) else []
    has_kernels = any(
        len(weight.shape) > 1
        for part in parts[1:]
        if not isinstance(part, keras.layers.Embedding)
        for weight in part.weights
    )
    return has_kernels or id(call.operation) in repeated


def between(name: str, start: Any, end: Any, calls: Sequence[Call]) -> Block:
    """Return the block from one symbolic tensor to another among the calls of the whole model, see `graph_calls`.

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
