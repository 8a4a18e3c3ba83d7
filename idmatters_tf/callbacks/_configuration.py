"""Configuration of a `fit` as plain data, and comparison with that of a checkpoint."""

import hashlib
import json
import warnings
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from idmatters_tf._arguments import describe_differences, make_unique_name
from idmatters_tf._keras_internals import compile_arguments, get_graph, layers_within, loss_arguments

# Locations of classes, and seeds, since the states of their generators are restored.
_DROPPED = {"build_config", "build_input_shape", "compile_config", "module"}
_DROPPED |= {"registered_name", "seed", "shared_object_id"}
# Length of an array's JSON text that is saved in full.
_LONGEST_ARRAY = 500
Optimizers = Mapping[str, keras.optimizers.Optimizer]


def describe_configuration(model: keras.Model, optimizers: Optimizers) -> dict[str, object]:
    """Return the configuration of a model's layers, its optimizers, its loss and its metrics.

    A layer or optimizer without `get_config` is described by its class only.

    Returns:
        Numbers and strings by path, as in "the model: Dense 2.activation".
    """
    compiled = compile_arguments(model) or {}
    trained = {
        "the loss": {name: _to_plain_data(compiled.get(name)) for name in ("loss", "loss_weights")},
        "the metrics": {
            **{name: _to_plain_data(compiled.get(name)) for name in ("metrics", "weighted_metrics")},
            "own": [_to_plain_data(metric) for metric in model.metrics],
        },
    }
    return _flatten({"the model": _describe_layers(model)}) | describe_optimizers(optimizers) | _flatten(trained)


def describe_optimizers(optimizers: Optimizers) -> dict[str, object]:
    """Return the part of `describe_configuration` that callbacks change between two checkpoints, as learning rates."""
    return _flatten({label_optimizer(path): _to_plain_data(own) for path, own in optimizers.items()})


def _flatten(parts):
    """Return the values of nested parts by path, as in "the model: Dense 2.activation"."""
    leaves = keras.tree.flatten_with_path(parts)
    return {f"{path[0]}: {'.'.join(map(str, path[1:]))}": value for path, value in leaves}


def compare_identity(saved: Mapping[str, object], now: Mapping[str, object]) -> str | None:
    """Return a text that names the differences of two identities of runs, or None if the saved values are equal."""
    differences = describe_differences(saved, now, [*saved, *(name for name in now if name not in saved)])
    return f"is a checkpoint of another run: {'; '.join(differences)}" if differences else None


def label_optimizer(path: str) -> str:
    """Return the name of an optimizer in messages."""
    return "the optimizer" if path == "optimizer" else f"the optimizer {path}"


def _describe_layers(model: keras.Model) -> dict[str, object]:
    """Return the configurations of layers by class and number. Graphs come last, so that layers are reported first."""
    described: dict[str, object] = {}
    for layer in sorted(layers_within(model), key=lambda layer: isinstance(layer, keras.Model)):
        config = _describe_model(layer) if isinstance(layer, keras.Model) else layer
        described[make_unique_name(type(layer).__name__, described, " ")] = _to_plain_data(config)
    return described


def _describe_model(model: keras.Model) -> dict[str, object]:
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


def _to_plain_data(value: object) -> object:
    """Convert a value to lists, dicts, strings and numbers, without names, seeds and the code of lambdas."""
    with warnings.catch_warnings():
        # Keras warns of lambdas, which are not deserialized here.
        warnings.simplefilter("ignore")
        text = json.dumps(value, default=_convert, skipkeys=True)
    # As text, NaN is equal to itself.
    return json.loads(text, object_hook=_simplify, parse_constant=str)


def _convert(value: object) -> object:
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


def _simplify(value: dict[str, Any]) -> object:
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


def _abbreviate_array(value: object) -> object:
    """Return the checksum of many numbers or strings, such as those of a matrix or a vocabulary."""
    text = json.dumps(value)
    if not isinstance(value, list) or len(text) <= _LONGEST_ARRAY or "{" in text:
        return value
    return f"{len(value)} values, SHA-256 {hashlib.sha256(text.encode()).hexdigest()}"
