"""Internals of Keras: the operations of a functional model in order, with those of nested models in their place."""

import dataclasses
from collections.abc import Iterator, Sequence

import keras

from idmatters_tf._keras_internals.graphs import (
    get_graph,
    inputs_and_masks,
    layers_within,
    node_arguments,
    nodes_in_order,
    overrides_call,
)
from idmatters_tf._keras_internals.hub import is_from_hub
from idmatters_tf._keras_internals.keras_source import Functional, Node


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One call of a layer or operation in a model.

    Attributes:
        name: name of the operation; "nested/layer" inside of a nested model.
        operation: the layer or operation.
        inputs, outputs: symbolic tensors that it takes, without masks, and returns. Inputs and outputs of nested models
            are the tensors around them.
        masks: symbolic tensors that it takes as masks.
        arguments: its positional arguments.
    """

    name: str
    operation: keras.Operation
    inputs: tuple[keras.KerasTensor, ...]
    outputs: tuple[keras.KerasTensor, ...]
    masks: tuple[keras.KerasTensor, ...] = ()
    arguments: tuple[object, ...] = ()

    @property
    def kind(self) -> str:
        """Name of the class of one of Keras' operations, such as "Add"; empty for layers."""
        return "" if isinstance(self.operation, keras.layers.Layer) else name_in_keras(self.operation)


def read_steps(model: keras.Model) -> tuple[list[Step], list[keras.KerasTensor]] | None:
    """Return the steps of a functional or Sequential model in order, and its output tensors; None for other models.

    Models that are called several times, or with arguments such as `training`, are a single step each.
    """
    graph = get_graph(model)
    if graph is None or overrides_call(model):
        return None
    aliases: dict[int, keras.KerasTensor] = {}
    steps = list(_list_steps(graph, "", aliases))
    outputs: list[keras.KerasTensor] = graph.outputs
    return steps, [aliases.get(id(tensor), tensor) for tensor in outputs]


def _list_steps(graph: Functional, prefix: str, aliases: dict[int, keras.KerasTensor]) -> Iterator[Step]:
    nodes = nodes_in_order(graph)
    for node in nodes:
        name = prefix + node.operation.name
        inputs, masks = inputs_and_masks(node, aliases)
        nested = _nested_graph(node, nodes, inputs)
        if nested is None:
            yield Step(name, node.operation, inputs, tuple(node.outputs), masks, node_arguments(node)[0])
            continue
        aliases.update(zip(map(id, nested.inputs), inputs, strict=True))
        yield from _list_steps(nested, f"{name}/", aliases)
        inside: list[keras.KerasTensor] = nested.outputs
        for outer, inner in zip(node.outputs, inside, strict=True):
            aliases[id(outer)] = aliases.get(id(inner), inner)


def _nested_graph(node: Node, nodes: Sequence[Node], inputs: Sequence[keras.KerasTensor]) -> Functional | None:
    """Return the graph of the nested model that a node calls, or None if its steps cannot replace the node."""
    graph = get_graph(node.operation)
    if graph is None or overrides_call(node.operation):
        return None
    given = any(value is not None for name, value in node_arguments(node)[1].items() if name != "mask")
    is_called_once = sum(other.operation is node.operation for other in nodes) == 1
    # Tensors of a dict are listed in the order of its keys, which must be those of the model.
    first = node.arguments.args[0] if node.arguments.args else None
    expected = graph.input
    is_alike = len(inputs) == len(graph.inputs) and (
        len(inputs) == 1 or isinstance(first, dict) == isinstance(expected, dict)
    )
    if is_alike and isinstance(first, dict) and isinstance(expected, dict):
        is_alike = set(first) == set(expected)
    return graph if is_alike and is_called_once and not given else None


def is_kind_of_keras(kind: type, part: str) -> bool:
    """Return True for a class of a part of Keras' source, such as "layers" or "applications"."""
    return kind.__module__.startswith(f"keras.src.{part}.")


def name_in_keras(operation: object) -> str:
    """Return the name of the class of one of Keras' operations or layers, such as "Add"; empty for other classes."""
    kind = type(operation)
    return kind.__name__ if is_kind_of_keras(kind, "ops") or is_kind_of_keras(kind, "layers") else ""


def nested_models(layer: keras.layers.Layer) -> list[keras.Model]:
    """Return the functional and Sequential models in a layer, or the layer itself if it is one."""
    return [part for part in layers_within(layer) if isinstance(part, keras.Model) and get_graph(part) is not None]


# Layers of Keras' applications and of KerasHub that multiply their input by a trained factor, and the variable.
_CONVNEXT = "keras.src.applications.convnext"
_FACTORS = {
    (_CONVNEXT, "LayerScale"): "gamma",
    ("keras_hub.src.models.dinov2.dinov2_layers", "DINOV2LayerScale"): "lambda1",
    ("keras_hub.src.models.dinov3.dinov3_layers", "DINOV3LayerScale"): "lambda1",
}
# Layers that drop whole examples, or parts of them, in training.
_DROPS = {
    (_CONVNEXT, "StochasticDepth"),
    ("keras_hub.src.models.dinov2.dinov2_layers", "DINOV2DropPath"),
    ("keras_hub.src.models.dinov3.dinov3_layers", "DINOV3DropPath"),
    ("keras_hub.src.models.swin_transformer.swin_transformer_layers", "DropPath"),
    ("keras_hub.src.models.mit.mit_layers", "DropPath"),
}


def _key(operation: object) -> tuple[str, str]:
    return type(operation).__module__, type(operation).__name__


def trained_factor(layer: object) -> keras.Variable | None:
    """Return the factor of a layer of Keras' applications or KerasHub that multiplies its input by one."""
    name = _FACTORS.get(_key(layer))
    return None if name is None else getattr(layer, name)


def drops_paths(layer: object) -> bool:
    """Return True for the layers of Keras' applications and KerasHub that drop examples in training."""
    return _key(layer) in _DROPS


def attention_output(layer: object) -> keras.layers.Layer | None:
    """Return the last dense layer of the attention layers of Keras and KerasHub; None for other layers."""
    kinds = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
    is_known = type(layer) in kinds or is_from_hub(layer)
    return layer._output_dense if is_known and isinstance(layer, kinds) else None
