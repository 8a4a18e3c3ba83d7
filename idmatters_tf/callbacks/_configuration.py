"""Configuration of a `fit` as plain data, and comparison with that of a checkpoint."""

import contextlib
import hashlib
import json
import types
import warnings
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from idmatters_tf._arguments import describe_differences, make_unique_name
from idmatters_tf._keras_internals import (
    compile_arguments,
    get_graph,
    is_internal_attribute,
    layers_within,
    loss_arguments,
)
from idmatters_tf.callbacks._encoding import NotPlainData, Snapshot, is_variable
from idmatters_tf.callbacks._training_state import find_optimizers, list_parts, may_own

# Locations of classes, and seeds, since the states of their generators are restored.
_DROPPED = {"build_config", "build_input_shape", "compile_config", "module", "registered_name", "seed"}
_DROPPED |= {"shared_object_id"}
# Length of an array's JSON text that is saved in full.
_LONGEST_ARRAY = 500


def describe_configuration(model: keras.Model) -> dict[str, Any]:
    """Return the configuration of a model's layers, its optimizers, its loss and its metrics.

    A layer or optimizer without `get_config` is described by its class only.

    Returns:
        Numbers and strings by path, as in "the model: Dense 2.activation".
    """
    compiled = compile_arguments(model) or {}
    parts = {
        "the model": _describe_layers(model),
        **_describe_optimizers(model),
        "the loss": {name: _to_plain_data(compiled.get(name)) for name in ("loss", "loss_weights")},
        "the metrics": {
            **{name: _to_plain_data(compiled.get(name)) for name in ("metrics", "weighted_metrics")},
            "own": [_to_plain_data(metric) for metric in model.metrics],
        },
    }
    return _flatten(parts)


def describe_optimizers(model: keras.Model) -> dict[str, Any]:
    """Return the part of `describe_configuration` that callbacks change between two checkpoints, as learning rates."""
    return _flatten(_describe_optimizers(model))


def _describe_optimizers(model):
    return {label_optimizer(path): _to_plain_data(own) for path, own in find_optimizers(model).items()}


def _flatten(parts):
    """Return the values of nested parts by path, as in "the model: Dense 2.activation"."""
    leaves = keras.tree.flatten_with_path(parts)
    return {f"{path[0]}: {'.'.join(map(str, path[1:]))}": value for path, value in leaves}


def compare_identity(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return a text that names the differences of two identities of runs, or None if the saved values are equal."""
    differences = describe_differences(saved, now)
    return f"is a checkpoint of another run: {'; '.join(differences)}" if differences else None


def label_optimizer(path: str) -> str:
    """Return the name of an optimizer in messages."""
    return "the optimizer" if path == "optimizer" else f"the optimizer {path}"


def _describe_layers(model: keras.Model) -> dict[str, Any]:
    """Return the configurations of layers by class and number. Graphs come last, so that layers are reported first."""
    described: dict[str, Any] = {}
    for layer in sorted(layers_within(model), key=lambda layer: isinstance(layer, keras.Model)):
        config = _describe_model(layer) if isinstance(layer, keras.Model) else layer
        described[make_unique_name(type(layer).__name__, described, " ")] = _to_plain_data(config)
    return described


def _describe_model(model: Any) -> dict[str, Any]:
    """Return the configuration of a model without its layers, which have separate entries, but with its graph."""
    config = _get_config(model)["config"]
    layers = config.pop("layers", None)
    if get_graph(model) is not model or not isinstance(layers, list):
        return config
    own = {layer.name for layer in layers_within(model)}
    config["graph"] = [[layer["class_name"], layer["inbound_nodes"]] for layer in layers]
    config["operations"] = [layer["config"] for layer in layers if layer["name"] not in own]
    text = json.dumps(config, default=_convert, skipkeys=True)
    for index, layer in enumerate(layers):
        # Default names are numbered over all models of the process.
        text = text.replace(json.dumps(layer["name"]), f'"layer {index}"')
    return json.loads(text)


def _to_plain_data(value: Any) -> Any:
    """Convert a value to lists, dicts, strings and numbers, without names, seeds and the code of lambdas."""
    with warnings.catch_warnings():
        # Keras warns of lambdas, which are not deserialized here.
        warnings.simplefilter("ignore")
        text = json.dumps(value, default=_convert, skipkeys=True)
    # As text, NaN is equal to itself.
    return json.loads(text, object_hook=_simplify, parse_constant=str)


def _convert(value: Any) -> Any:
    """Convert an object for `json`, which converts the values inside of it."""
    if callable(getattr(value, "get_config", None)):
        return _get_config(value)
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if keras.ops.is_tensor(value) or isinstance(value, (np.ndarray, np.generic, keras.Variable)):
        return np.asarray(keras.ops.convert_to_numpy(value)).tolist()
    return getattr(value, "__name__", type(value).__name__)


def _get_config(value: Any) -> dict[str, Any]:
    try:
        config = dict(value.get_config())
    except Exception:
        # The method of the user or of Keras fails.
        config = {}
    if isinstance(value, keras.losses.Loss):
        config |= loss_arguments(value)
    return {"class_name": type(value).__name__, "config": config}


def _simplify(value: dict[str, Any]) -> Any:
    """Simplify a decoded dict of a configuration."""
    if value.get("class_name") == "__lambda__":
        # Its code contains line numbers.
        return "<lambda>"
    # The only item of the configuration of a policy is its name.
    dropped = _DROPPED if len(value) == 1 else _DROPPED | {"name"}
    value = {name: _abbreviate_array(entry) for name, entry in value.items() if name not in dropped}
    if isinstance(value.get("config"), dict):
        value |= value.pop("config")
    return value


def _abbreviate_array(value: Any) -> Any:
    """Return the checksum of many numbers or strings, such as those of a matrix or a vocabulary."""
    text = json.dumps(value)
    if not isinstance(value, list) or len(text) <= _LONGEST_ARRAY or "{" in text:
        return value
    return f"{len(value)} values, SHA-256 {hashlib.sha256(text.encode()).hexdigest()}"


def describe_attributes(model: keras.Model, start: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the attributes of layers, optimizers, metrics and losses, and of objects in them, as "Class.attribute".

    Functions, numbers and strings are described by their value, other data by a checksum in bytes. Variables and Keras'
    own internal attributes are left out.

    Args:
        model: built and compiled model.
        start: an earlier result. Tensors that it does not contain, such as features kept by a layer, are left out.
    """
    losses = keras.tree.flatten((compile_arguments(model) or {}).get("loss"))
    owners: dict[str, Any] = {}
    for owner in [*layers_within(model), *find_optimizers(model).values(), *model.metrics, *losses]:
        owners[make_unique_name(type(owner).__name__, owners, " ")] = owner
    described: dict[str, Any] = {}
    seen, queue = set(map(id, owners.values())), list(owners.items())
    for path, owner in queue:
        if isinstance(owner, keras.layers.Layer):
            described[f"{path}.trainable"] = owner.trainable
        for name, value in list_parts(owner):
            if value is None or is_internal_attribute(owner, name.lstrip(".")):
                continue
            if isinstance(value, (bool, int, float, str, types.FunctionType)):
                described[path + name] = value
                continue
            # Slow, hence last.
            is_new, is_tensor = start is not None and path + name not in start, keras.ops.is_tensor(value)
            if is_variable(value) or (is_new and is_tensor):
                continue
            try:
                value = keras.ops.convert_to_numpy(value) if is_tensor else value
            except (TypeError, NotImplementedError):
                # A tensor of a function that is traced.
                continue
            if isinstance(value, (set, frozenset)):
                value = sorted(map(repr, value))
            owns, is_container = may_own(type(value), value.__class__), isinstance(value, (list, tuple, Mapping))
            if is_container or not owns:
                with contextlib.suppress(NotPlainData):
                    described[path + name] = Snapshot(value).digest
                    continue
            if owns and id(value) not in seen:
                seen.add(id(value))
                queue.append((path + name, value))
    return described
