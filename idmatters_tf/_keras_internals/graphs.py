"""Internals of functional models in Keras: their graphs, calls, copies and masks."""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras

from idmatters_tf._keras_internals.keras_source import (
    Functional,
    Node,
    functional_like_constructor,
    masking,
    numpy_operations,
    tensor_attributes,
)
from idmatters_tf._keras_types import Options, Structure, Tensor

# A method `call`, or a handler that takes such a method and its arguments.
CallFunction: TypeAlias = Callable[..., Structure]
_ELEMENTWISE = tuple(
    getattr(keras.layers, name)
    for name in (
        *("Activation", "ELU", "LeakyReLU", "PReLU", "ReLU", "Softmax"),
        *("Add", "Average", "Concatenate", "Dot", "Maximum", "Minimum", "Multiply", "Subtract"),
    )
)


def get_mask(tensor: Tensor) -> Tensor | None:
    """Return the mask that `keras.layers.Masking`, or an `Embedding` with `mask_zero`, has attached to an output."""
    return masking.get_keras_mask(tensor)


def set_mask(tensor: Tensor, mask: Tensor | None) -> None:
    """Attach a mask to a tensor, as a layer does to its outputs; None removes it."""
    masking.set_keras_mask(tensor, mask)


def attention_handlers(model: keras.Model) -> list[tuple[keras.Operation, CallFunction]]:
    """Return handlers for `intercepted` that keep the masks which attention removes from its inputs."""

    def keep(call: CallFunction, /, *args: object, **kwargs: object) -> Structure:
        for tensor in keras.tree.flatten((args, kwargs)):
            if (mask := get_mask(tensor)) is not None:
                tensor_attributes.set_tensor_attr(tensor, "_kept_mask", mask)
        return call(*args, **kwargs)

    return [(layer, keep) for layer in layers_within(model) if isinstance(layer, keras.layers.MultiHeadAttention)]


def kept_mask(tensor: Tensor) -> Tensor | None:
    """Return the mask of a tensor, also if attention has removed it in the context of `attention_handlers`."""
    mask = get_mask(tensor)
    return tensor_attributes.get_tensor_attr(tensor, "_kept_mask") if mask is None else mask


def get_graph(operation: object) -> Functional | None:
    """Return the graph of a functional or a built Sequential model, a `Functional`; None for everything else."""
    if isinstance(operation, keras.Sequential):
        return operation._functional
    return operation if isinstance(operation, Functional) else None


def graph_of(model: keras.Operation) -> Functional:
    """Return the graph of a functional or a built Sequential model."""
    graph = get_graph(model)
    if graph is None:
        raise TypeError(f"The model must be functional or Sequential. Received: {type(model).__name__}")
    return graph


def overrides_call(model: keras.Model) -> bool:
    """Return True if the class of a functional or Sequential model overrides `call`."""
    return type(model).call not in (Functional.call, keras.Sequential.call)


def has_functional_constructor(model: keras.Model) -> bool:
    """Return True if the class of a functional model is called with (inputs, outputs, name)."""
    return functional_like_constructor(type(model))


def run_graph(
    graph: Functional,
    inputs: Structure,
    call: CallFunction,
    operation: Callable[[keras.Operation], Callable[..., object]] = lambda operation: operation,
) -> Structure:
    """Return the outputs of a functional model's graph, each replaced operation called as `call(operation, *args)`.

    `keras.models.clone_model(call_function=)` does this, too, but serializes the loss and excludes nested Sequential
    models.
    """
    return graph._run_through_graph(inputs, operation_fn=operation, call_fn=call)


def standardized_inputs(graph: Functional, inputs: Structure) -> list[Tensor]:
    """Return concrete inputs as the flat list of tensors, in the declared dtypes, that a functional model takes."""
    return graph._standardize_inputs(inputs)


def input_operations(graph: Functional) -> Structure:
    """Return the `InputLayer`s of a functional model, in the structure of its inputs."""
    return keras.tree.map_structure(lambda tensor: tensor._keras_history.operation, graph.input)


def producer(tensor: Tensor) -> Node:
    """Return the node that computed a symbolic tensor, with `operation`, `input_tensors` and `is_input`."""
    operation, index, _ = tensor._keras_history
    return operation._inbound_nodes[index]


def node_arguments(node: Node) -> tuple[tuple[Structure, ...], dict[str, Structure]]:
    """Return the positional arguments of a call and its arguments by name."""
    arguments: Any = node.arguments
    return arguments.args, arguments.kwargs


def is_addition(operation: object) -> bool:
    """Return True if an operation is `keras.layers.Add` or the `+` of two symbolic tensors."""
    return isinstance(operation, (keras.layers.Add, numpy_operations.Add))


def skip_index(call: "Call", ancestors: Mapping[int, set[int]]) -> int | None:
    """Return the index of x among the arguments of a sum x + f(x) + ...; None for other calls.

    All other terms are computed from x, according to `find_ancestors`.
    """
    if not is_addition(call.operation) or len({tuple(tensor.shape) for tensor in call.inputs}) != 1:
        return None
    for index, x in enumerate(call.inputs):
        others = [tensor for position, tensor in enumerate(call.inputs) if position != index]
        if others and all(id(x) in ancestors.get(id(tensor), ()) for tensor in others):
            return index
    return None


def find_ancestors(calls: Iterable["Call"]) -> dict[int, set[int]]:
    """Return the tensors that each output of calls, in the order of execution, is computed from, both by `id`.

    The outputs of KerasHub's position embeddings depend on the shapes of their inputs only and have no ancestors.
    """
    ancestors: dict[int, set[int]] = {}
    for call in calls:
        above = {id(tensor) for tensor in call.inputs}.union(*(ancestors.get(id(t), set()) for t in call.inputs))
        if is_position_embedding(call.operation):
            above = set()
        ancestors |= {id(output): above for output in call.outputs}
    return ancestors


def layers_within(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return the layer and all layers inside of it, outer ones first."""
    return [*layer._flatten_layers()]


def is_position_embedding(operation: object) -> bool:
    """Return True for layers of KerasHub whose output depends on the shape of their input only."""
    kind = type(operation)
    return kind.__module__.startswith("keras_hub.") and kind.__name__ in ("PositionEmbedding", "SinePositionEncoding")


def transforms_features(operation: object) -> bool:
    """Return True for a layer, other than an activation or a merging layer, in contrast to element-wise operations."""
    return isinstance(operation, keras.layers.Layer) and not isinstance(operation, _ELEMENTWISE)


def call_arguments(call: CallFunction, args: Sequence[object], options: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments of an operation's `call` by name, in the order of its signature."""
    signature = inspect.signature(call)
    named: dict[str, object] = {}
    for name, value in signature.bind_partial(*args, **options).arguments.items():
        is_further = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        named |= value if is_further else {name: value}
    return named


@contextlib.contextmanager
def intercepted(handlers: Iterable[tuple[keras.Operation, CallFunction]]) -> Iterator[None]:
    """Replace the calls of operations by `handler(call, *args, **kwargs)` inside the context, each operation once."""
    operations: list[keras.Operation] = []
    try:
        for operation, handler in handlers:
            operations.append(operation)
            vars(operation)["call"] = functools.partial(handler, operation.call)
        yield
    finally:
        for operation in operations:
            vars(operation).pop("call", None)


def copy_operation(operation: keras.Operation) -> Any:
    """Return a new operation with the configuration and name of another one; a `Lambda` with its function."""
    if type(operation) is keras.layers.Lambda:
        # Its configuration contains byte code without its globals, which Keras does not run in safe mode.
        return keras.layers.Lambda(
            operation.function,
            operation._output_shape,
            operation.mask,
            operation.arguments,
            **keras.layers.Layer.get_config(operation),
        )
    copied = type(operation).from_config(operation.get_config())
    copied.name = operation.name
    return copied


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a layer, or of an operation, in a model's graph.

    Attributes:
        name: name of the operation; "nested/layer" inside of a nested model.
        operation: the layer or operation.
        inputs, outputs: symbolic tensors that it takes and returns.
        node: Keras' record of the call; None for the output of a nested model.
        masks: symbolic tensors, not of floating point, that it takes as arguments called "mask" or "..._mask". They are
            not among `inputs`.
        way: "in" and "out" for the input and the output of a nested model; None for all other calls.
    """

    name: str
    operation: keras.Operation
    inputs: tuple[keras.KerasTensor, ...]
    outputs: tuple[keras.KerasTensor, ...]
    node: Node | None
    masks: tuple[keras.KerasTensor, ...] = ()
    way: str | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class ModelGraph:
    """Graph of a functional or Sequential model, read once for all functions that use it.

    Attributes:
        calls: calls in the order of execution. Those of nested models are included, except of models that are called
            several times or with more than one tensor.
    """

    calls: list[Call]

    @functools.cached_property
    def ancestors(self) -> dict[int, set[int]]:
        """Tensors that each output is computed from, see `find_ancestors`."""
        return find_ancestors(self.calls)


def read_graph(model: object) -> ModelGraph | None:
    """Return the graph of a functional or Sequential model; None for other models."""
    graph = get_graph(model)
    return None if graph is None else ModelGraph(list(_list_calls(graph, "")))


def nodes_in_order(graph: Functional) -> list[Node]:
    """Return the calls in a graph in the order of execution."""
    nodes = [node for _, several in sorted(graph._nodes_by_depth.items(), reverse=True) for node in several]
    return [node for node in nodes if node.operation is not None and not node.is_input]


def _list_calls(graph: Functional, prefix: str) -> Iterator[Call]:
    nodes = nodes_in_order(graph)
    for node in nodes:
        name = prefix + node.operation.name
        outputs = tuple(node.outputs)
        inputs, masks = inputs_and_masks(node)
        nested = _nested_graph(node, nodes, inputs)
        if nested is None:
            yield Call(name, node.operation, inputs, outputs, node, masks)
            continue
        yield Call(name, node.operation, inputs, tuple(nested.inputs), node, masks, "in")
        yield from _list_calls(nested, f"{name}/")
        yield Call(name, node.operation, tuple(nested.outputs), outputs, None, (), "out")


def inputs_and_masks(
    node: Node, aliases: Mapping[int, keras.KerasTensor] | None = None
) -> tuple[tuple[keras.KerasTensor, ...], tuple[keras.KerasTensor, ...]]:
    """Return the symbolic tensors that a node takes as inputs and as masks.

    Keras passes masks by the names of the arguments, and records them also when it adds them itself. `aliases` are
    tensors that take the place of others, by the `id` of these.
    """
    inputs: list[keras.KerasTensor] = []
    masks: list[keras.KerasTensor] = []
    for name, value in call_arguments(node.operation.call, *node_arguments(node)).items():
        is_mask = name == "mask" or name.endswith("_mask")
        for tensor in keras.tree.flatten(value):
            if isinstance(tensor, keras.KerasTensor):
                kind = masks if is_mask and not keras.backend.is_float_dtype(tensor.dtype) else inputs
                kind.append((aliases or {}).get(id(tensor), tensor))
    return tuple(inputs), tuple(masks)


def _nested_graph(node: Node, nodes: Sequence[Node], inputs: Sequence[keras.KerasTensor]) -> Functional | None:
    """Return the graph of the nested model that a node calls, or None if its calls cannot replace the node."""
    graph = get_graph(node.operation)
    if graph is None or overrides_call(node.operation):
        return None
    one_tensor = len(inputs) == len(graph.inputs) == 1
    # Arguments such as training=True.
    given = any(value is not None for name, value in node_arguments(node)[1].items() if name != "mask")
    once = sum(other.operation is node.operation for other in nodes) == 1
    return graph if one_tensor and once and not given else None


def graph_inputs(model: keras.Model, inputs: Structure) -> dict[int, Tensor]:
    """Return the inputs of a functional or Sequential model by the identity of their symbolic tensors."""
    graph = graph_of(model)
    tensors = keras.tree.map_structure(lambda x: None if x is None else keras.ops.convert_to_tensor(x), inputs)
    values = keras.tree.flatten(standardized_inputs(graph, tensors))
    return {id(symbolic): value for symbolic, value in zip(graph.inputs, values, strict=True)}


def _fill_in(call: Call, values: dict[int, Tensor]) -> tuple[Sequence[Structure], Options]:
    """Return the arguments of a call with computed tensors in place of symbolic ones."""
    if call.node is None:
        return [values[id(tensor)] for tensor in call.inputs], {}
    arguments: Any = call.node.arguments
    return arguments.fill_in(values)


def run_calls(calls: Iterable[Call], values: dict[int, Tensor], training: bool) -> list[Call]:
    """Execute calls one after the other, and return those whose inputs have masks that Keras has attached.

    The outputs are added to `values`, the computed tensors by the identity of their symbolic tensors.
    """
    masked: list[Call] = []
    entered: dict[int, tuple[Tensor, Tensor | None]] = {}
    for call in calls:
        tensors = [values[id(tensor)] for tensor in call.inputs]
        if any(get_mask(tensor) is not None for tensor in tensors):
            masked.append(call)
        arguments, options = _fill_in(call, values)
        if call.way == "in":
            explicit = options.get("mask")
            mask = get_mask(tensors[0]) if explicit is None else explicit
            entered[id(call.operation)] = tensors[0], mask
            outputs = keras.tree.flatten(standardized_inputs(graph_of(call.operation), tensors[0]))
            if mask is not None:
                set_mask(outputs[0], mask)
        elif call.way == "out":
            outputs = tensors
            nested = call.operation
            if isinstance(nested, keras.Model) and id(nested) in entered and nested.supports_masking:
                first, mask = entered[id(nested)]
                nested._set_mask_metadata(first, outputs, mask)
        else:
            if "training" in getattr(call.operation, "_call_context_args", ()):
                options = {**options, "training": training}
            outputs = keras.tree.flatten(call.operation(*arguments, **options))
        values.update(zip(map(id, call.outputs), outputs, strict=True))
    return masked
