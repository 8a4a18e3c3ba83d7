"""The configuration of a `fit`: its model, optimizers and loss as plain data, and how two of them differ."""

import math
import warnings
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from idmatters_tf._arguments import abbreviate
from idmatters_tf._keras_internals import compile_arguments, graph_of, layers_within, loss_arguments
from idmatters_tf.callbacks._model_parts import find_optimizers

# Names that Keras numbers, where a class is defined, code, and seeds, whose generators' states are restored.
_DROPPED = {"build_config", "build_input_shape", "code", "compile_config", "module", "registered_name", "seed"}
_DROPPED |= {"shared_object_id"}
_HISTORIES = {"input_layers", "keras_history", "output_layers"}


def configuration(model: keras.Model) -> dict[str, Any]:
    """Return the configuration of a model's layers, its optimizers and its loss.

    A layer or optimizer without `get_config` counts by its class alone.
    """
    with warnings.catch_warnings():
        # Of lambdas, which are not going to be loaded again.
        warnings.simplefilter("ignore")
        found: dict[str, Any] = {"the model": _layers(model)}
        for path, optimizer in find_optimizers(model).items():
            found[the_optimizer(path)] = _own(optimizer)
        compiled = compile_arguments(model) or {}
        found["the loss"] = _plain({name: compiled.get(name) for name in ("loss", "loss_weights")})
    return found


def the_optimizer(path: str) -> str:
    """Return the name by which messages call an optimizer."""
    return "the optimizer" if path == "optimizer" else f"the optimizer {path}"


def first_difference(start: Any, current: Any, now: Any, name: str = "") -> str | None:
    """Return in words where a configuration differs from that of a run; None where it does not.

    Callbacks change rates and more during training: each value may be that of the run's start or of its checkpoint.

    Args:
        start: at the beginning of the run.
        current: when the checkpoint was saved.
        now: that is compared with the two.
        name: of what is compared.
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
            what = first_difference(start[key], inner, now[key], path)
            if what is not None:
                return what
        return None
    if isinstance(now, list) and isinstance(start, list) and len(now) == len(start):
        changed = current if isinstance(current, list) and len(current) == len(now) else start
        several = zip(start, changed, now, strict=True)
        found = (first_difference(*each, f"{name}[{place}]") for place, each in enumerate(several))
        return next(filter(None, found), None)
    name = name.replace(": config.", ": ").replace(".config.", ".")
    return f"{name} was {abbreviate(start, 80)}, now {abbreviate(now, 80)}"


def _layers(model: keras.Model) -> dict[str, Any]:
    """The layers by class and number; graphs come last, since a layer that differs is the better answer."""
    found: dict[str, Any] = {}
    for layer in sorted(layers_within(model), key=lambda each: isinstance(each, keras.Model)):
        kind = type(layer).__name__
        number = sum(name.rpartition(" ")[0] == kind or name == kind for name in found) + 1
        found[f"{kind} {number}" if number > 1 else kind] = _own(layer)["config"]
    return found


def _own(object_: Any) -> Any:
    """The class and configuration of one object, its layers left out."""
    try:
        config = object_.get_config()
    except Exception:
        # The user's own method fails, or Keras refuses.
        config = {}
    names: dict[str, str] = {}
    if isinstance(object_, keras.losses.Loss) and isinstance(config, dict):
        config = {**config, **loss_arguments(object_)}
    if isinstance(object_, keras.Model) and isinstance(config, dict):
        layers = config.get("layers")
        config = {name: value for name, value in config.items() if name != "layers"}
        if graph_of(object_) is object_ and isinstance(layers, list):
            names = {layer["name"]: f"layer {place}" for place, layer in enumerate(layers)}
            own = {layer.name for layer in layers_within(object_)}
            config["graph"] = [
                # Layers have an entry of their own; operations do not.
                [
                    each["class_name"],
                    each["inbound_nodes"],
                    None if each["name"] in own else _without_name(each["config"]),
                ]
                for each in layers
            ]
    return {"class_name": type(object_).__name__, "config": _plain(_without_name(config), names)}


def _plain(value: Any, names: Mapping[str, str] | None = None) -> Any:
    """A value as lists, dicts, strings, numbers."""
    names = names or {}
    if isinstance(value, float):
        # NaN differs from itself.
        return float(value) if math.isfinite(value) else str(value)
    for kind in (bool, int, str):
        if isinstance(value, kind):
            # Not one of a sub-class, which an encoder may not know.
            return kind(value)
    if value is None:
        return None
    if isinstance(value, Mapping):
        if set(value) == {"value"} and isinstance(value["value"], (list, tuple)):
            # A lambda's code, with the number of its line.
            return "<lambda>"
        found = {}
        for key, each in value.items():
            if key in _DROPPED:
                continue
            if key == "config" and "Policy" not in str(value.get("class_name")):
                each = _without_name(each)
            found[str(key)] = _renamed(each, names) if key in _HISTORIES else _plain(each, names)
        return found
    if isinstance(value, (list, tuple)):
        return [_plain(each, names) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if keras.ops.is_tensor(value) or isinstance(value, (np.ndarray, np.generic, keras.Variable)):
        return _plain(np.asarray(keras.ops.convert_to_numpy(value)).tolist())
    if callable(getattr(value, "get_config", None)):
        return _own(value)
    return getattr(value, "__name__", type(value).__name__)


def _without_name(config: Any) -> Any:
    return {name: each for name, each in config.items() if name != "name"} if isinstance(config, dict) else config


def _renamed(history: Any, names: Mapping[str, str]) -> Any:
    """The names of layers in a graph as their numbers."""
    if isinstance(history, Mapping):
        return {str(key): _renamed(each, names) for key, each in history.items()}
    if isinstance(history, (list, tuple)):
        return [_renamed(each, names) for each in history]
    return names.get(history, history) if isinstance(history, str) else history
