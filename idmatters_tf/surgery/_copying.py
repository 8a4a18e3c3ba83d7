"""A copy of a functional or Sequential model in which layers are inserted or left out."""

from collections.abc import Callable, Iterator
from typing import Any

import keras

from idmatters_tf import _keras_internals
from idmatters_tf._keras_types import Tensor

# A function of (operation, its outputs) that returns (what stands for them, the layers inserted behind the operation).
AfterCall = Callable[[Any, Any], tuple[Any, list[keras.layers.Layer]]]
# A function of (operation, the arguments of a call) that returns what stands for the outputs of one left out, or None.
InsteadOfCall = Callable[[Any, tuple[Any, ...]], Any]


class ModelCopy:
    """Copies a model with its weights. Layers that were shared stay shared, nested models are copied with the rest.

    Args:
        model: a built functional or Sequential model.
        after: inserts layers behind an operation of the model.
        instead: leaves an operation of the model out.

    Attributes:
        model: the copy; not compiled.
        left_out: the `id` of each operation of the old model that is not in the copy.
        variables: by `id` of each of the old model's variables, the copy's.

    Raises:
        ValueError: for a model of another kind, and for layers that cannot be made anew from their configuration.
    """

    def __init__(self, model: keras.Model, after: AfterCall | None = None, instead: InsteadOfCall | None = None):
        self._after, self._instead = after, instead
        self._copies: dict[int, Any] = {}
        self._originals: dict[int, Any] = {}
        self._inserted: dict[int, list[keras.layers.Layer]] = {}
        self.left_out: set[int] = set()
        self.variables: dict[int, keras.Variable] = {}
        self.model: Any = self._copied_model(model)
        self._copy_trainability(model)

    def _copied_model(self, model: Any) -> Any:
        graph = checked_graph(model)
        inputs = keras.tree.map_structure(
            lambda layer: self._copied(layer).output, _keras_internals.input_operations(graph)
        )
        outputs = _keras_internals.run_graph(graph, inputs, self._call, self._copied)
        if isinstance(model, keras.Sequential):
            layers = [keras.tree.flatten(inputs)[0]]
            for layer in model.layers:
                if id(layer) not in self.left_out:
                    layers += [self._copied(layer), *self._inserted.get(id(layer), [])]
            copied: Any = type(model)(layers, name=model.name)
        else:
            copied = type(model)(inputs, outputs, name=model.name)
        self._originals[id(copied)], self._copies[id(model)] = model, copied
        return copied

    def _copied(self, operation: Any) -> Any:
        if id(operation) not in self._copies:
            if opened(operation) is None:
                self._copies[id(operation)] = copied = _from_configuration(operation)
            else:
                copied = self._copied_model(operation)
            self._originals[id(copied)] = operation
        return self._copies[id(operation)]

    def _call(self, copied: Any, *args: Any, **kwargs: Any) -> Any:
        original = self._originals[id(copied)]
        replaced = None if self._instead is None else self._instead(original, args)
        if replaced is not None:
            self.left_out.add(id(original))
            return replaced
        try:
            outputs = copied(*args, **kwargs)
        except Exception as error:
            raise ValueError(
                _not_copied(original, f"made from its configuration, it cannot be called. {error}")
            ) from error
        if opened(original) is None and isinstance(original, keras.layers.Layer):
            self._copy_weights(original, copied)
        if self._after is not None:
            outputs, self._inserted[id(original)] = self._after(original, outputs)
        return outputs

    def _copy_weights(self, original: keras.layers.Layer, copied: keras.layers.Layer) -> None:
        ours, theirs = original.variables, copied.variables
        if [tuple(variable.shape) for variable in ours] != [tuple(variable.shape) for variable in theirs]:
            raise ValueError(
                _not_copied(original, "made from its configuration, it has other weights. Mend its `get_config`.")
            )
        for old, new in zip(ours, theirs, strict=True):
            if id(old) in self.variables and self.variables[id(old)] is not new:
                raise ValueError(
                    f"The variable {old.path} belongs to two layers, which a copy cannot reproduce. Share the layer in "
                    f"place of the variable."
                )
            if id(old) not in self.variables:
                # By value: on JAX `fit` gives the buffers of its own model away.
                new.assign(keras.ops.convert_to_numpy(old))
                _keras_internals.set_path(new, old.path)
                self.variables[id(old)] = new
        for layer in _keras_internals.layers_within(copied):
            # What `keras.layers.Normalization` computes from its variables.
            finalize = getattr(layer, "finalize_state", None)
            if finalize is not None:
                finalize()

    def _copy_trainability(self, model: keras.Model) -> None:
        """Frozen layers stay frozen, also where their model was frozen as a whole; the models themselves are not."""
        for layer, frozen in _leaves(model, not model.trainable):
            if id(layer) in self.left_out or id(layer) not in self._copies:
                continue
            pairs = zip(
                _keras_internals.layers_within(layer),
                _keras_internals.layers_within(self._copies[id(layer)]),
                strict=True,
            )
            for old, new in pairs:
                new.trainable = old.trainable and not frozen
            for old in layer.variables:
                new = self.variables.get(id(old))
                if new is not None and new.trainable != (old.trainable and not frozen):
                    new.trainable = old.trainable and not frozen


def checked_graph(model: Any) -> Any:
    """The model's graph.

    Raises:
        ValueError: where it has none that is known, or its class cannot be constructed again.
    """
    if not isinstance(model, keras.Model):
        raise ValueError(f"Argument `model` must be a keras.Model. Received: {type(model).__name__}")
    graph = _keras_internals.graph_of(model)
    if graph is None:
        if isinstance(model, keras.Sequential):
            raise ValueError(
                f"The Sequential model {model.name!r} must be built, for one tensor. Call model.build(input_shape), "
                f"or start it with keras.Input(shape)."
            )
        raise ValueError(
            f"Argument `model` must be a functional or Sequential model. Received: {model.name!r} of class "
            f"{type(model).__name__}, whose connections are not known. Build it with keras.Model(inputs, outputs)."
        )
    if not _constructible(model):
        raise ValueError(
            f"The model {model.name!r} is of the class {type(model).__name__}, whose constructor does not take a "
            f"model's inputs and outputs. Pass keras.Model(model.input, model.output)."
        )
    return graph


def opened(operation: Any) -> Any:
    """The graph of a nested model that can be copied node by node; None for all other operations."""
    graph = _keras_internals.graph_of(operation)
    return graph if graph is not None and _constructible(operation) else None


def operations(model: Any) -> Iterator[tuple[str, Any]]:
    """(path, operation) of all operations, those of nested models as "model/operation"; each once."""
    seen: set[int] = set()

    def walk(graph: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        for operation in graph.operations:
            if id(operation) in seen or isinstance(operation, keras.layers.InputLayer):
                continue
            seen.add(id(operation))
            yield prefix + operation.name, operation
            nested = opened(operation)
            if nested is not None:
                yield from walk(nested, f"{prefix}{operation.name}/")

    return walk(checked_graph(model), "")


def single(tensors: Any) -> Tensor | None:
    """The tensor of a structure with exactly one, else None."""
    flat = keras.tree.flatten(tensors)
    return flat[0] if len(flat) == 1 else None


def _leaves(model: Any, frozen: bool) -> Iterator[tuple[keras.layers.Layer, bool]]:
    """The layers that are not models themselves, and whether a model around them is frozen."""
    for layer in _keras_internals.graph_of(model).layers:
        if opened(layer) is None:
            yield layer, frozen
        else:
            yield from _leaves(layer, frozen or not layer.trainable)


def _constructible(model: keras.Model) -> bool:
    if isinstance(model, keras.Sequential):
        return type(model).__init__ is keras.Sequential.__init__
    return _keras_internals.has_functional_constructor(model)


def _from_configuration(operation: Any) -> Any:
    try:
        return _keras_internals.copy_of(operation)
    except Exception as error:
        reason = (
            "implement `get_config`, and register the classes and functions that it holds with Keras. A lambda cannot "
            "be registered: write a function with `def`, or a `keras.layers.Lambda`."
        )
        raise ValueError(_not_copied(operation, f"{reason} {error}")) from error


def _not_copied(operation: Any, reason: str) -> str:
    return f"Layer {operation.name!r} ({type(operation).__name__}) cannot be copied: {reason}"
