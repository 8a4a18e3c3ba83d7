"""Configuration and environment of a `fit` as plain data, and comparison with those of a checkpoint."""

import functools
import hashlib
import json
import math
import warnings
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from idmatters_tf import _environment
from idmatters_tf._arguments import abbreviate
from idmatters_tf._keras_internals import compile_arguments, get_graph, layers_within, loss_arguments
from idmatters_tf.callbacks._model_parts import find_optimizers

# Numbered names, locations of classes, code, and seeds, since the states of their generators are restored.
_DROPPED = {"build_config", "build_input_shape", "code", "compile_config", "module", "registered_name", "seed"}
_DROPPED |= {"shared_object_id"}
# Length of an array's JSON text that is saved in full.
_LONGEST_ARRAY = 500
_PACKAGES = ("tensorflow", "tensorflow-cpu", "jax", "jaxlib", "keras", "keras-nightly", "numpy", "idmatters-tf")
_HISTORIES = {"input_layers", "keras_history", "output_layers"}


def describe_environment() -> dict[str, Any]:
    """Return the versions of packages, and the threads and devices of this process."""
    return {"versions": _collect_versions(), "numerics": _environment.describe_numerics(keras.backend.backend())}


@functools.cache
def _collect_versions():
    # Reading the metadata of installed packages takes milliseconds.
    return _environment.collect_versions(_PACKAGES)


def warn_of_environment(saved: Mapping[str, Any]) -> None:
    """Warn if the environment of a checkpoint differs, so that results will differ from an uninterrupted run."""
    warning = _environment.describe_environment_change(saved, describe_environment())
    if warning is not None:
        warnings.warn(warning, stacklevel=2)


def describe_configuration(model: keras.Model) -> dict[str, Any]:
    """Return the configuration of a model's layers, its optimizers and its loss.

    A layer or optimizer without `get_config` is described by its class only.
    """
    with warnings.catch_warnings():
        # Keras warns of lambdas, which are not deserialized here.
        warnings.simplefilter("ignore")
        found: dict[str, Any] = {"the model": _describe_layers(model)}
        for path, optimizer in find_optimizers(model).items():
            found[label_optimizer(path)] = _describe_object(optimizer)
        compiled = compile_arguments(model) or {}
        found["the loss"] = _to_plain_data({name: compiled.get(name) for name in ("loss", "loss_weights")})
    return found


def label_optimizer(path: str) -> str:
    """Return the name of an optimizer in messages."""
    return "the optimizer" if path == "optimizer" else f"the optimizer {path}"


def find_difference(start: Any, current: Any, now: Any, name: str = "") -> str | None:
    """Return a description of the first difference between a configuration and that of a run, or None.

    Callbacks change learning rates and other values, so each value may equal that at the start or in the checkpoint.

    Args:
        start: configuration at the beginning of the run.
        current: configuration in the checkpoint.
        now: configuration to compare.
        name: name of the compared part.
    """
    if now in (start, current):
        return None
    if isinstance(now, dict) and isinstance(start, dict):
        for key in dict.fromkeys([*start, *now]):
            # "the optimizer: learning_rate", "the model: Dense 2.activation"
            path = key if not name else f"{name}{'.' if ': ' in name else ': '}{key}"
            if key not in now or key not in start:
                return f"{path} {'is new' if key in now else 'is missing'}"
            inner = current.get(key, start[key]) if isinstance(current, dict) else start[key]
            difference = find_difference(start[key], inner, now[key], path)
            if difference is not None:
                return difference
        return None
    if isinstance(now, list) and isinstance(start, list) and len(now) == len(start):
        changed = current if isinstance(current, list) and len(current) == len(now) else start
        several = zip(start, changed, now, strict=True)
        found = (find_difference(*each, f"{name}[{place}]") for place, each in enumerate(several))
        return next(filter(None, found), None)
    name = name.replace(": config.", ": ").replace(".config.", ".")
    return f"{name} was {abbreviate(start, 80)}, now {abbreviate(now, 80)}"


def drop_trainable(config: Any) -> Any:
    """Return a configuration without the items `trainable`."""
    if isinstance(config, dict):
        return {name: drop_trainable(value) for name, value in config.items() if name != "trainable"}
    return [drop_trainable(each) for each in config] if isinstance(config, list) else config


def _describe_layers(model: keras.Model) -> dict[str, Any]:
    """Return the configurations of layers by class and number. Graphs come last, so that layers are reported first."""
    found: dict[str, Any] = {}
    for layer in sorted(layers_within(model), key=lambda each: isinstance(each, keras.Model)):
        kind = type(layer).__name__
        number = sum(name.rpartition(" ")[0] == kind or name == kind for name in found) + 1
        found[f"{kind} {number}" if number > 1 else kind] = _describe_object(layer)["config"]
    return found


def _describe_object(object_: Any) -> Any:
    """Return the class and configuration of an object without its layers."""
    try:
        config = object_.get_config()
    except Exception:
        # The method of the user or of Keras fails.
        config = {}
    names: dict[str, str] = {}
    if isinstance(object_, keras.losses.Loss) and isinstance(config, dict):
        config = {**config, **loss_arguments(object_)}
    if isinstance(object_, keras.Model) and isinstance(config, dict):
        layers = config.get("layers")
        config = {name: value for name, value in config.items() if name != "layers"}
        if get_graph(object_) is object_ and isinstance(layers, list):
            names = {layer["name"]: f"layer {place}" for place, layer in enumerate(layers)}
            own = {layer.name for layer in layers_within(object_)}
            config["graph"] = [
                # Layers have separate entries, operations do not.
                [
                    each["class_name"],
                    each["inbound_nodes"],
                    None if each["name"] in own else _remove_name(each["config"]),
                ]
                for each in layers
            ]
    return {"class_name": type(object_).__name__, "config": _to_plain_data(_remove_name(config), names)}


def _to_plain_data(value: Any, names: Mapping[str, str] | None = None) -> Any:
    """Convert a value to lists, dicts, strings and numbers."""
    names = names or {}
    if isinstance(value, float):
        # NaN is not equal to itself.
        return float(value) if math.isfinite(value) else str(value)
    for kind in (bool, int, str):
        if isinstance(value, kind):
            # An instance of a subclass may not be encodable.
            return kind(value)
    if value is None:
        return None
    if isinstance(value, Mapping):
        if set(value) == {"value"} and isinstance(value["value"], (list, tuple)):
            # The code of a lambda contains line numbers.
            return "<lambda>"
        found = {}
        for key, each in value.items():
            if key in _DROPPED:
                continue
            if key == "config" and "Policy" not in str(value.get("class_name")):
                each = _remove_name(each)
            found[str(key)] = _rename_layers(each, names) if key in _HISTORIES else _to_plain_data(each, names)
        return found
    if isinstance(value, (list, tuple)):
        return _abbreviate_array([_to_plain_data(each, names) for each in value])
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if keras.ops.is_tensor(value) or isinstance(value, (np.ndarray, np.generic, keras.Variable)):
        return _to_plain_data(np.asarray(keras.ops.convert_to_numpy(value)).tolist())
    if callable(getattr(value, "get_config", None)):
        return _describe_object(value)
    return getattr(value, "__name__", type(value).__name__)


def _abbreviate_array(values: list[Any]) -> Any:
    """Return the checksum of many numbers or strings, such as those of a matrix or a vocabulary."""
    text = json.dumps(values)
    if len(text) <= _LONGEST_ARRAY or not _is_array(values):
        return values
    return f"{len(values)} values, SHA-256 {hashlib.sha256(text.encode()).hexdigest()}"


def _is_array(values: list[Any]) -> bool:
    return all(_is_array(each) if isinstance(each, list) else isinstance(each, (int, float, str)) for each in values)


def _remove_name(config: Any) -> Any:
    return {name: each for name, each in config.items() if name != "name"} if isinstance(config, dict) else config


def _rename_layers(history: Any, names: Mapping[str, str]) -> Any:
    """Replace the names of layers in a graph by their numbers."""
    if isinstance(history, Mapping):
        return {str(key): _rename_layers(each, names) for key, each in history.items()}
    if isinstance(history, (list, tuple)):
        return [_rename_layers(each, names) for each in history]
    return names.get(history, history) if isinstance(history, str) else history
