"""Residual blocks of a model, detected in its graph or named by the user."""

import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import keras

from idmatters_tf._arguments import make_unique_name
from idmatters_tf._keras_internals import (
    Call,
    ModelGraph,
    hub_block,
    is_addition,
    layers_within,
    overrides_call,
    read_graph,
    repeated_blocks,
    skip_index,
    transforms_features,
)
from idmatters_tf._keras_types import Tensor
from idmatters_tf.layers import (
    BasicBlock2D,
    LinearResidual,
    ResidualConv2D,
    ResidualDense,
    ScaledResidualConv2D,
    ShortcutUnit,
)

# Name of a layer, or of the first and the last layer of a block.
BlockName: TypeAlias = str | tuple[str, str]
BlockNames: TypeAlias = Sequence[BlockName] | Mapping[str, BlockName]

RESIDUAL_LAYERS = (BasicBlock2D, LinearResidual, ResidualConv2D, ResidualDense, ScaledResidualConv2D, ShortcutUnit)


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """A part of a model with one input and one output.

    Masks are not inputs: their values in the model are held fixed. For layers of layers this also applies to all other
    arguments, such as the sequence of an encoder.

    Attributes:
        name: name of the layer, or "FROM to TO".
        operation: layer, or sum x + f(x), that returns the output of the block.
        index: index of x among the arguments of the operation.
        start, end: symbolic tensors at the two ends; None for a layer inside of another layer.
        calls: calls of layers and operations between them, in order of execution; empty for a layer inside of another
            layer.
    """

    name: str
    operation: keras.Operation
    index: int = 0
    start: keras.KerasTensor | None = None
    end: keras.KerasTensor | None = None
    calls: tuple[Call, ...] = ()

    @property
    def layer(self) -> keras.Operation | None:
        """Layer of a block that is a single layer, otherwise None."""
        return self.operation if len(self.calls) < 2 else None

    @property
    def variables(self) -> list[keras.Variable]:
        """Trainable variables of the block, each once."""
        operations = [call.operation for call in self.calls] or [self.operation]
        variables = [v for operation in operations for v in getattr(operation, "trainable_variables", ())]
        return list({id(variable): variable for variable in variables}.values())

    @property
    def data_format(self) -> str:
        """Data format of the images in the block: that of its first layer with one, or Keras' setting."""
        formats = [getattr(call.operation, "data_format", None) for call in self.calls]
        return next(filter(None, formats), keras.config.image_data_format())


def find_blocks(model: keras.Model, blocks: BlockNames | None = None) -> list[Block]:
    """Return the blocks of a model, in order of execution.

    Args:
        model: built functional or Sequential model.
        blocks: None for all residual layers of this package; all sums x + f(x) or x + f(x) + g(x), in which all other
            terms are computed from x by layers; `keras_hub.layers.TransformerEncoder` and `TransformerDecoder`; and the
            repeated layers of KerasHub's backbones and tasks. Blocks of other classes have to be named: a list of layer
            names (from the layer's input to its output) and of pairs of names (from the output of the first layer, or
            from the `keras.Input` of that name, to the output of the second), or a dict of these under names of your
            own. A layer of a nested model is "nested/layer", or "layer" if the name is unique.

    Raises:
        ValueError: if the model has no graph or no blocks, if a name is unknown, or if the output of a block depends on
            more than its one input.
    """
    return select_blocks(model, checked_graph(model), blocks)


def select_blocks(model: keras.Model, graph: ModelGraph, blocks: BlockNames | None) -> list[Block]:
    """Return the blocks of a model whose graph has been read. Arguments and errors: as `find_blocks`."""
    if blocks is None:
        if not (detected := residual_blocks(model, graph)):
            remedy = "Name them as blocks=[layer, ...] or blocks=[(from, to), ...]."
            raise ValueError(missing_blocks(model, graph, remedy))
        return detected
    if isinstance(blocks, Mapping):
        return [_make_block(entry, graph.calls, str(name)) for name, entry in blocks.items()]
    return [_make_block(entry, graph.calls) for entry in blocks]


def checked_graph(model: keras.Model) -> ModelGraph:
    """Return the graph of a model, or raise ValueError if it has none."""
    graph = read_graph(model)
    if graph is None:
        raise ValueError(
            f"Argument `model` must be a built functional or Sequential model. Received: {type(model).__name__} "
            f"{model.name!r}. Build it on an input shape, or build a functional model from its layers."
        )
    return graph


def missing_blocks(model: keras.Model, graph: ModelGraph, remedy: str) -> str:
    """Return the error message for a model without blocks."""
    return (
        f"The model {model.name!r} has no residual layers of this package or of KerasHub, and no sums x + f(x). "
        f"{remedy} Its layers: {_names(graph.calls)}"
    )


def residual_blocks(model: keras.Model, graph: ModelGraph | None = None) -> list[Block]:
    """Return the blocks that `find_blocks` detects, or an empty list for a model without blocks or without a graph."""
    graph = read_graph(model) if graph is None else graph
    found = [] if graph is None else _detect(model, graph)
    blocks = [block for block in found if block.calls or block.start is None]
    skips = [(block, block.calls[-1].inputs[block.index]) for block in blocks if is_addition(block.operation)]
    # The first sum of (x + f(x)) + g(x) is a part of the block.
    parts = {id(skipped) for block, skipped in skips if skipped is not block.start}
    return [block for block in blocks if id(block.end) not in parts]


def find_operations(model: keras.Model, graph: ModelGraph, names: Sequence[str] | None = None) -> dict[str, Block]:
    """Return the residual blocks of a model by name, each layer or sum once, or the layers with given names.

    The blocks include sums whose branch also depends on other tensors than x, and the blocks of nested models that are
    called several times, of which `find_blocks` returns none.
    """
    if names is not None:
        named = {name: Block(name, _find_call(name, graph.calls).operation) for name in names}
        for block in named.values():
            if not isinstance(block.operation, keras.layers.Layer) and not is_addition(block.operation):
                raise ValueError(f"Argument `blocks` must name layers. Received: {block.name!r}")
        return named
    found: dict[int, Block] = {}
    for block in _detect(model, graph):
        found.setdefault(id(block.operation), block)
    for call in graph.calls:
        inner = call.operation
        nested = read_graph(inner) if call.way is None else None
        if isinstance(inner, keras.Model) and nested is not None and not overrides_call(inner):
            for name, block in find_operations(inner, nested).items():
                found.setdefault(id(block.operation), dataclasses.replace(block, name=f"{call.name}/{name}"))
    return {block.name: block for block in found.values()}


def _detect(model: keras.Model, graph: ModelGraph) -> list[Block]:
    """Return the residual blocks of a model; without `calls`, if they are not functions of x alone."""
    calls, ancestors = graph.calls, graph.ancestors
    repeated = {id(operation): name for name, operation in repeated_blocks(model)}
    blocks: dict[str, Block] = {}
    for call in calls:
        # A shared layer is called several times.
        name = make_unique_name(repeated.get(id(call.operation), call.name), blocks)
        is_layer = _is_residual_layer(call, repeated)
        found = (0, call.inputs[0]) if is_layer else _find_skip(call, ancestors, blocks.values())
        if inner := _inner_layers(call, repeated):
            blocks |= {repeated[id(layer)]: Block(repeated[id(layer)], layer) for layer in inner}
        elif found is not None:
            index, start = found
            block = Block(name, call.operation, index, start, call.outputs[0], (call,) if is_layer else ())
            if not is_layer:
                if not _has_branch(block, calls, ancestors) or _crosses(block, blocks.values(), ancestors):
                    continue
                # The branch may also depend on tensors computed before x.
                with contextlib.suppress(ValueError):
                    block = dataclasses.replace(block, calls=between(name, block.start, block.end, calls).calls)
            blocks[name] = block
    return list(blocks.values())


def _find_skip(
    call: Call, ancestors: Mapping[int, set[int]], blocks: Collection[Block]
) -> tuple[int, keras.KerasTensor] | None:
    """Return the index of the skipped argument of a sum and x, or None for a call that is not a residual sum.

    These are the same, except in (x + f(x)) + g(x), where the argument is x + f(x).
    """
    if (index := skip_index(call, ancestors)) is not None:
        return index, call.inputs[index]
    starts = {id(block.end): block.start for block in blocks if is_addition(block.operation)}
    if is_addition(call.operation) and len(call.inputs) == 2:
        for index, (skipped, other) in enumerate((call.inputs, call.inputs[::-1])):
            start = starts.get(id(skipped))
            if start is not None and skipped is not other and id(start) in ancestors.get(id(other), ()):
                return (index, start) if tuple(skipped.shape) == tuple(other.shape) else None
    return None


def _has_branch(block: Block, calls: Sequence[Call], ancestors: Mapping[int, set[int]]) -> bool:
    """Return True if a branch contains a layer. Activations as in x + 0.04 x^3 consist of element-wise operations."""
    above = ancestors[id(block.end)]
    return any(
        transforms_features(call.operation)
        and id(call.outputs[0]) in above
        and id(block.start) in ancestors[id(call.outputs[0])]
        for call in calls
    )


def _crosses(block: Block, blocks: Collection[Block], ancestors: Mapping[int, set[int]]) -> bool:
    """Return True if a sum starts inside of a block of another shape and ends after it, as in previous + scores."""
    if block.start is None:
        return False
    return any(
        is_addition(other.operation)
        and tuple(other.start.shape) != tuple(block.start.shape)
        and id(other.start) in ancestors.get(id(block.start), ())
        and id(block.start) in ancestors[id(other.end)]
        and id(other.end) in ancestors[id(block.end)]
        for other in blocks
        if other.start is not None
    )


def _is_residual_layer(call: Call, repeated: Mapping[int, str]) -> bool:
    """Return True for a call of one of this package's or KerasHub's residual layers that maps one tensor to another."""
    if call.way is not None or len(call.outputs) != 1 or not call.inputs:
        return False
    if isinstance(call.operation, RESIDUAL_LAYERS):
        return True
    is_known = hub_block(call.operation) is not None or id(call.operation) in repeated
    return is_known and not is_addition(call.operation)


def _inner_layers(call: Call, repeated: Mapping[int, str]) -> list[keras.layers.Layer]:
    """Return KerasHub's repeated layers inside of a layer, or of a model whose calls are not in the graph."""
    if not repeated or call.way is not None or not isinstance(call.operation, keras.layers.Layer):
        return []
    within = layers_within(call.operation)[1:]
    return [layer for layer in within if id(layer) in repeated and not is_addition(layer)]


def between(name: str, start: Tensor, end: Tensor, calls: Sequence[Call]) -> Block:
    """Return the block from one symbolic tensor to another among the calls of the whole model, see `ModelGraph`.

    Raises:
        ValueError: if the second tensor cannot be computed from the first alone.
    """
    needed = {id(end)}
    used: list[Call] = []
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
    return Block(name, used[0].operation, start=start, end=end, calls=tuple(reversed(used)))


def _make_block(entry: BlockName, calls: Sequence[Call], name: str | None = None) -> Block:
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
    """Return the names of calls, each once, as a text."""
    names = list(dict.fromkeys(call.name for call in calls))
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
