"""Copies of functional and Sequential models, with layers inserted or removed."""

from collections.abc import Callable, Iterator
from typing import Any

import keras

from idmatters_tf import _keras_internals
from idmatters_tf._keras_types import Tensor

# Function (operation, its outputs) -> (replacement of the outputs, layers inserted after the operation).
AfterCall = Callable[[Any, Any], tuple[Any, list[keras.layers.Layer]]]
# Function (operation, arguments of a call) -> replacement of the outputs if the operation is removed, otherwise None.
InsteadOfCall = Callable[[Any, tuple[Any, ...]], Any]


class ModelCopy:
    """Copy of a model with its weights. Shared layers stay shared, and nested models are copied as well.

    Args:
        model: built functional or Sequential model.
        after: function that inserts layers after an operation of the model.
        instead: function that removes an operation of the model.

    Attributes:
        model: the copy, not compiled.
        removed_ids: `id` of each operation of the old model that is not in the copy.
        variables: dict from `id` of the old model's variables to the variables of the copy.

    Raises:
        ValueError: if the model is of another kind, or a layer cannot be built from its configuration.
    """

    def __init__(self, model: keras.Model, after: AfterCall | None = None, instead: InsteadOfCall | None = None):
        self._after, self._instead = after, instead
        self._copies: dict[int, Any] = {}
        self._originals: dict[int, Any] = {}
        self._inserted: dict[int, list[keras.layers.Layer]] = {}
        self.removed_ids: set[int] = set()
        self.variables: dict[int, keras.Variable] = {}
        self.model: Any = self._copy_model(model)
        self._copy_trainability(model)

    def _copy_model(self, model: Any) -> Any:
        graph = checked_graph(model)
        inputs = keras.tree.map_structure(
            lambda layer: self._copy_operation(layer).output, _keras_internals.input_operations(graph)
        )
        outputs = _keras_internals.run_graph(graph, inputs, self._call, self._copy_operation)
        if isinstance(model, keras.Sequential):
            layers = [keras.tree.flatten(inputs)[0]]
            for layer in model.layers:
                if id(layer) not in self.removed_ids:
                    layers += [self._copy_operation(layer), *self._inserted.get(id(layer), [])]
            copied: Any = type(model)(layers, name=model.name)
        else:
            copied = type(model)(inputs, outputs, name=model.name)
        self._originals[id(copied)], self._copies[id(model)] = model, copied
        return copied

    def _copy_operation(self, operation: Any) -> Any:
        if id(operation) not in self._copies:
            if nested_graph(operation) is None:
                self._copies[id(operation)] = copied = _build_from_configuration(operation)
            else:
                copied = self._copy_model(operation)
            self._originals[id(copied)] = operation
        return self._copies[id(operation)]

    def _call(self, copied: Any, *args: Any, **kwargs: Any) -> Any:
        original = self._originals[id(copied)]
        replaced = None if self._instead is None else self._instead(original, args)
        if replaced is not None:
            self.removed_ids.add(id(original))
            return replaced
        try:
            outputs = copied(*args, **kwargs)
        except Exception as error:
            raise ValueError(
                _copy_error(original, f"built from its configuration, it cannot be called. {error}")
            ) from error
        if nested_graph(original) is None and isinstance(original, keras.layers.Layer):
            self._copy_weights(original, copied)
        if self._after is not None:
            outputs, self._inserted[id(original)] = self._after(original, outputs)
        return outputs

    def _copy_weights(self, original: keras.layers.Layer, copied: keras.layers.Layer) -> None:
        ours, theirs = original.variables, copied.variables
        if [tuple(variable.shape) for variable in ours] != [tuple(variable.shape) for variable in theirs]:
            raise ValueError(
                _copy_error(original, "built from its configuration, it has other weights. Fix its `get_config`.")
            )
        for old, new in zip(ours, theirs, strict=True):
            if id(old) in self.variables and self.variables[id(old)] is not new:
                raise ValueError(
                    f"The variable {old.path} belongs to two layers, which a copy cannot reproduce. Share the layer "
                    f"instead of the variable."
                )
            if id(old) not in self.variables:
                # Copy by value, because `fit` on JAX donates the buffers of its model.
                new.assign(keras.ops.convert_to_numpy(old))
                _keras_internals.set_path(new, old.path)
                self.variables[id(old)] = new
        for layer in _keras_internals.layers_within(copied):
            # `keras.layers.Normalization` derives constants from its variables.
            finalize = getattr(layer, "finalize_state", None)
            if finalize is not None:
                finalize()

    def _copy_trainability(self, model: keras.Model) -> None:
        """Freeze the copies of frozen layers, including all layers of frozen models; models stay trainable."""
        for layer, frozen in _leaves(model, not model.trainable):
            if id(layer) in self.removed_ids or id(layer) not in self._copies:
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
    """Return the graph of a model.

    Raises:
        ValueError: if the model has no graph, or its class has another constructor.
    """
    if not isinstance(model, keras.Model):
        raise ValueError(f"Argument `model` must be a keras.Model. Received: {type(model).__name__}")
    graph = _keras_internals.get_graph(model)
    if graph is None:
        if isinstance(model, keras.Sequential):
            raise ValueError(
                f"The Sequential model {model.name!r} must be built. Call model.build(input_shape), or start it with "
                f"keras.Input(shape)."
            )
        raise ValueError(
            f"Argument `model` must be a functional or Sequential model. Received: {model.name!r} of class "
            f"{type(model).__name__}. Build it with keras.Model(inputs, outputs)."
        )
    if not _constructible(model):
        raise ValueError(
            f"The constructor of {type(model).__name__} (model {model.name!r}) must accept inputs and outputs. Pass "
            f"keras.Model(model.input, model.output)."
        )
    return graph


def nested_graph(operation: Any) -> Any:
    """Return the graph of a nested model that can be copied node by node, and None for all other operations."""
    graph = _keras_internals.get_graph(operation)
    return graph if graph is not None and _constructible(operation) else None


def operations(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield (path, operation) of each operation once. Operations of nested models are "model/operation"."""
    seen: set[int] = set()

    def walk(graph: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        for operation in graph.operations:
            if id(operation) in seen or isinstance(operation, keras.layers.InputLayer):
                continue
            seen.add(id(operation))
            yield prefix + operation.name, operation
            nested = nested_graph(operation)
            if nested is not None:
                yield from walk(nested, f"{prefix}{operation.name}/")

    return walk(checked_graph(model), "")


def single_tensor(tensors: Any) -> Tensor | None:
    """Return the tensor of a structure with exactly one tensor, otherwise None."""
    flat = keras.tree.flatten(tensors)
    return flat[0] if len(flat) == 1 else None


def _leaves(model: Any, frozen: bool) -> Iterator[tuple[keras.layers.Layer, bool]]:
    """Yield (layer, is_frozen) of the layers that are not models; True if a model around the layer is frozen."""
    for layer in _keras_internals.get_graph(model).layers:
        if nested_graph(layer) is None:
            yield layer, frozen
        else:
            yield from _leaves(layer, frozen or not layer.trainable)


def _constructible(model: keras.Model) -> bool:
    if isinstance(model, keras.Sequential):
        return type(model).__init__ is keras.Sequential.__init__
    return _keras_internals.has_functional_constructor(model)


def _build_from_configuration(operation: Any) -> Any:
    try:
        return _keras_internals.copy_operation(operation)
    except Exception as error:
        reason = (
            "implement `get_config` and register its classes and functions with Keras. Replace a lambda by a function "
            "with a name (`def`) or a `keras.layers.Lambda`."
        )
        raise ValueError(_copy_error(operation, f"{reason} {error}")) from error


def _copy_error(operation: Any, reason: str) -> str:
    return f"Layer {operation.name!r} ({type(operation).__name__}) cannot be copied: {reason}"
