"""Copies of functional and Sequential models, with layers inserted or removed."""

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import ops

from idmatters_tf import _keras_internals
from idmatters_tf._keras_types import Structure, Tensor

# Function (operation, its outputs) -> (replacement of the outputs, layers inserted after the operation).
AfterCall = Callable[[keras.Operation, Structure], tuple[Structure, list[keras.layers.Layer]]]
# Function (operation, arguments of a call) -> replacement of the outputs if the operation is removed, otherwise None.
InsteadOfCall = Callable[[keras.Operation, tuple[object, ...]], Structure]


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
        self._after = after
        self._instead = instead
        self._copies: dict[int, Any] = {}
        self._originals: dict[int, keras.Operation] = {}
        self._inserted: dict[int, list[keras.layers.Layer]] = {}
        # Nested models of which no layer remains.
        self._emptied: set[int] = set()
        self.removed_ids: set[int] = set()
        self.variables: dict[int, keras.Variable] = {}
        self.model = self._copy_model(model)
        self._copy_trainability(model)

    def _copy_model(self, model: keras.Model) -> keras.Model:
        graph = checked_graph(model)
        inputs = keras.tree.map_structure(
            lambda layer: self._copy_operation(layer).output, _keras_internals.input_operations(graph)
        )
        outputs = _keras_internals.run_graph(graph, inputs, self._call, self._copy_operation)
        if self.removed_ids and [*map(id, keras.tree.flatten(inputs))] == [*map(id, keras.tree.flatten(outputs))]:
            self._emptied.add(id(model))
        if isinstance(model, keras.Sequential):
            layers = [keras.tree.flatten(inputs)[0]]
            for layer in model.layers:
                if id(layer) not in self.removed_ids:
                    layers += [self._copy_operation(layer), *self._inserted.get(id(layer), [])]
            if len(layers) == 1:
                # Keras does not build a Sequential model without layers.
                layers.append(keras.layers.Identity())
            copied: Any = type(model)(layers, name=model.name)
        else:
            copied = type(model)(inputs, outputs, name=model.name)
            # Losses and metrics refer to outputs by these names, also if another layer now computes an output.
            copied.output_names = model.output_names
        copied.dtype_policy = model.dtype_policy
        self._originals[id(copied)], self._copies[id(model)] = model, copied
        return copied

    def _copy_operation(self, operation: keras.Operation) -> Any:
        if id(operation) not in self._copies:
            if isinstance(operation, keras.Model) and nested_graph(operation) is not None:
                return self._copy_model(operation)
            try:
                copied = _keras_internals.copy_operation(operation)
            except Exception as error:
                reason = (
                    "implement `get_config` and register its classes and functions with Keras. Replace a lambda by a "
                    "function with a name (`def`) or a `keras.layers.Lambda`."
                )
                raise ValueError(_copy_error(operation, f"{reason} {error}")) from error
            self._originals[id(copied)], self._copies[id(operation)] = operation, copied
        return self._copies[id(operation)]

    def _call(self, copied: Any, *args: object, **kwargs: object) -> Structure:
        original = self._originals[id(copied)]
        # Arguments may be given by name.
        arguments = tuple(_keras_internals.call_arguments(original.call, args, kwargs).values())
        replaced = None if self._instead is None else self._instead(original, arguments)
        if replaced is None and id(original) in self._emptied:
            replaced = arguments[0]
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
        shapes = [[tuple(variable.shape) for variable in layer.variables] for layer in (original, copied)]
        variables = list(zip(original.variables, copied.variables, strict=False))
        for old, new in variables:
            if self.variables.setdefault(id(old), new) is not new:
                raise ValueError(
                    f"The variable {old.path} belongs to two layers, which a copy cannot reproduce. Share the layer "
                    f"instead of the variable."
                )
        layers = [_keras_internals.layers_within(layer) for layer in (original, copied)]
        if shapes[0] != shapes[1] or len(layers[0]) != len(layers[1]):
            raise ValueError(
                _copy_error(original, "built from its configuration, it has other weights. Fix its `get_config`.")
            )
        for old, new in zip(*layers, strict=True):
            _copy_saved_state(old, new)
        for old, new in variables:
            _keras_internals.set_path(new, old.path)
        states = zip(*map(_keras_internals.recurrent_states, (original, copied)), strict=True)
        for old, new in [*variables, *states]:
            # Copy by value, because `fit` on JAX donates the buffers of its model.
            new.assign(ops.convert_to_numpy(old))

    def _copy_trainability(self, model: keras.Model) -> None:
        """Freeze the copies of frozen layers, or all layers if the model is frozen; copies of models stay trainable."""
        for original in self._originals.values():
            is_leaf = isinstance(original, keras.layers.Layer) and nested_graph(original) is None
            if not is_leaf or id(original) in self.removed_ids:
                continue
            for old, new in zip(
                _keras_internals.layers_within(original),
                _keras_internals.layers_within(self._copies[id(original)]),
                strict=True,
            ):
                new.trainable = old.trainable and model.trainable
        for old in model.variables:
            if id(old) in self.variables:
                self.variables[id(old)].trainable = old.trainable and model.trainable


def checked_graph(model: object) -> _keras_internals.Functional:
    """Return the graph of a model, or raise ValueError if it has none, or its class has another constructor."""
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


def nested_graph(operation: object) -> _keras_internals.Functional | None:
    """Return the graph of a nested model that can be copied node by node, and None for all other operations."""
    graph = _keras_internals.get_graph(operation)
    is_copied = graph is not None and isinstance(operation, keras.Model) and _constructible(operation)
    return graph if is_copied else None


def operations(model: object) -> Iterator[tuple[str, keras.Operation]]:
    """Yield (path, operation) of each operation once. Operations of nested models are "model/operation"."""
    seen: set[int] = set()

    def walk(graph: _keras_internals.Functional, prefix: str) -> Iterator[tuple[str, keras.Operation]]:
        for operation in graph.operations:
            if id(operation) in seen or isinstance(operation, keras.layers.InputLayer):
                continue
            seen.add(id(operation))
            yield prefix + operation.name, operation
            nested = nested_graph(operation)
            if nested is not None:
                yield from walk(nested, f"{prefix}{operation.name}/")

    return walk(checked_graph(model), "")


def single_tensor(tensors: Structure) -> Tensor | None:
    """Return the tensor of a structure with exactly one tensor, otherwise None."""
    flat = keras.tree.flatten(tensors)
    return flat[0] if len(flat) == 1 else None


def _copy_saved_state(old: keras.layers.Layer, new: keras.layers.Layer) -> None:
    """Copy state that is not in the variables of a layer, such as vocabularies, in the way that Keras saves it."""
    if type(old).load_own_variables is not keras.layers.Layer.load_own_variables:
        store: dict[str, Tensor] = {}
        old.save_own_variables(store)
        new.load_own_variables({name: ops.convert_to_numpy(value) for name, value in store.items()})
    if hasattr(old, "save_assets"):
        with tempfile.TemporaryDirectory() as folder:
            old.save_assets(folder)
            new.load_assets(folder)


def _constructible(model: keras.Model) -> bool:
    if isinstance(model, keras.Sequential):
        return type(model).__init__ is keras.Sequential.__init__
    return _keras_internals.has_functional_constructor(model)


def _copy_error(operation: keras.Operation, reason: str) -> str:
    return f"Layer {operation.name!r} ({type(operation).__name__}) cannot be copied: {reason}"
