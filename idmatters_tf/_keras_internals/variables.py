"""Internals of Keras: variables of generators, recurrent layers and optimizers, and values while tracing."""

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import keras
import numpy as np

from idmatters_tf._keras_internals.graphs import layers_within
from idmatters_tf._keras_internals.keras_source import global_state, rng_utils, seed_generator
from idmatters_tf._keras_internals.versions import OPTIMIZER_MAPS_SINCE_3_15
from idmatters_tf._keras_types import Tensor


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """Return the states, (2,) each, of the model's `keras.random.SeedGenerator`s, as in dropout.

    They are in `model.variables`, but not in `model.weights`, and are not saved.
    """
    return [generator.state for layer in layers_within(model) for generator in layer._seed_generators]


def recurrent_states(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the states of stateful recurrent layers at any depth, which are not among `layer.variables`."""
    layers = [part for part in layers_within(layer) if isinstance(part, keras.layers.RNN)]
    return [state for part in layers if part.stateful for state in keras.tree.flatten(part.states)]


def has_global_seed() -> bool:
    """Return True if `keras.utils.set_random_seed` has seeded the global generators."""
    return rng_utils.get_random_seed() is not None


def variable_owners(model: keras.Model) -> dict[int, keras.layers.Layer]:
    """Return the layer, or model, that has each variable as an attribute, by the identity of the variable."""
    owners: dict[int, keras.layers.Layer] = {}
    for layer in layers_within(model):
        for variable in [*layer._trainable_variables, *layer._non_trainable_variables]:
            owners.setdefault(id(variable), layer)
    return owners


def own_trainable_variables(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the attributes of a layer that were made as trainable variables, also if they have been frozen since."""
    return getattr(layer, "_trainable_variables", [])


def global_seed_state() -> keras.Variable | None:
    """Return the state of the generator behind random operations without a seed; None before its first use."""
    generator = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    return None if generator is None else generator.state


def make_global_seed_state() -> keras.Variable:
    """Return the state of the generator behind random operations without a seed. Create it if necessary."""
    return seed_generator.global_seed_generator().state


def set_path(variable: keras.Variable, path: str) -> None:
    """Set the path of a variable, which Keras derives from the layers around it."""
    variable._path = path


def outside_graphs() -> contextlib.AbstractContextManager[object]:
    """Return a context in which variables are made, read and assigned at once, also while TensorFlow traces."""
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    return tf.init_scope()


def value_outside_functions(variable: keras.Variable) -> np.ndarray:
    """Return the current value of a variable, also while TensorFlow traces a function."""
    with outside_graphs():
        return np.asarray(keras.ops.convert_to_numpy(variable.value))


def local_value(variable: keras.Variable) -> np.ndarray:
    """Return the value of a variable on the first device of this process, without reading those of other processes."""
    value: Tensor = variable.value
    return np.asarray(keras.ops.convert_to_numpy(getattr(value, "values", [value])[0]))


def variable_key(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> object:
    """Return the key of a variable in the tables of an optimizer."""
    return optimizer._var_key(variable)


def dense_gradient(gradient: Tensor) -> Tensor:
    """Return a gradient as a dense tensor, also the sparse one of an embedding on TensorFlow; None without one."""
    if gradient is None or keras.backend.backend() != "tensorflow":
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)


def optimized_variables(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Return the variables that an optimizer was built for; an empty list before `build`."""
    return list(optimizer._trainable_variables) if optimizer.built else []


def weight_averages(optimizer: keras.optimizers.Optimizer) -> list[tuple[keras.Variable, keras.Variable]]:
    """Return the optimized variables with their moving averages; an empty list without `use_ema` and before `build`."""
    averages = optimizer._model_variables_moving_average if optimizer.built and optimizer.use_ema else []
    return list(zip(optimized_variables(optimizer), averages, strict=False))


def optimizer_variables(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Return the variables of an optimizer, also an attribute of `Nadam` that a wrapper around it leaves out."""
    own = [value for value in vars(optimizer).values() if isinstance(value, keras.Variable)]
    return [*optimizer.variables, *own]


def distribution_layouts(distribution: object) -> dict[str, Sequence[str | None]]:
    """Return the axes over which `keras.distribution.ModelParallel` splits variables, by patterns of paths."""
    return {path: layout.axes for path, layout in getattr(distribution, "_layout_map", {}).items()}


def optimizer_attributes(optimizer: keras.optimizers.Optimizer) -> dict[str, object]:
    """Return the attributes of an optimizer by name, without its lists of all variables."""
    listed = ("_variables", "_trainable_variables")
    return {name: value for name, value in vars(optimizer).items() if name not in listed}


def weight_decay_exclusions(optimizer: keras.optimizers.Optimizer) -> tuple[set[object] | None, re.Pattern[str] | None]:
    """Return the arguments of `exclude_from_weight_decay`, keys of variables and a pattern; None if not called."""
    keys = getattr(optimizer, "_exclude_from_weight_decay", None)
    return keys, getattr(optimizer, "_exclude_from_weight_decay_pattern", None)


def learning_rate_schedule(optimizer: keras.optimizers.Optimizer) -> Callable[..., Tensor] | None:
    """Return the schedule or function that computes the learning rate; None for a constant."""
    rate = getattr(optimizer, "_learning_rate", None)
    return None if isinstance(rate, keras.Variable) else rate


def strategy_scope(model: keras.Model) -> contextlib.AbstractContextManager[object]:
    """Return the scope of the strategy of `tf.distribute` in which a model was built; an empty one without it."""
    strategy = getattr(model, "_distribute_strategy", None)
    return contextlib.nullcontext() if strategy is None else strategy.scope()


class Adapted(TypedDict, total=False):
    """Result of `adapt` for one layer; empty for results in variables."""

    boundaries: list[float] | None
    vocabulary: list[str]
    idf_weights: np.ndarray | None


def read_adapted(model: keras.layers.Layer) -> list[Adapted]:
    """Return what `adapt` has computed for the layers of a model or layer, other than variables, as plain data."""
    return [_read_adapted(layer) for layer in _adaptable_layers(model)]


def restore_adapted(model: keras.layers.Layer, adapted: Sequence[Adapted]) -> None:
    """Restore the result of `read_adapted`, and the constants that layers compute from their variables.

    Compiled functions of the model that contain other constants are made again.
    """
    layers = _adaptable_layers(model)
    before = [_read_constants(layer) for layer in layers]
    for layer, state in zip(layers, adapted, strict=True):
        if state == {}:
            layer.finalize_state()
        elif "boundaries" in state:
            layer.bin_boundaries = state["boundaries"]
        elif "vocabulary" in state and state["vocabulary"] != layer.get_vocabulary():
            weights = state.get("idf_weights")
            layer.set_vocabulary(state["vocabulary"], **({} if weights is None else {"idf_weights": weights}))
    if before != [_read_constants(layer) for layer in layers]:
        for name in ("train", "test", "predict"):
            if getattr(model, f"{name}_function", None) is not None:
                getattr(model, f"make_{name}_function")(force=True)


def _adaptable_layers(model: keras.layers.Layer) -> list[Any]:
    return [layer for layer in layers_within(model) if hasattr(layer, "finalize_state")]


def _read_adapted(layer: Any) -> Adapted:
    if isinstance(layer, keras.layers.Discretization):
        boundaries = layer.bin_boundaries
        return {"boundaries": None if boundaries is None else np.asarray(boundaries).tolist()}
    if not hasattr(layer, "get_vocabulary"):
        return {}
    weights = getattr(layer, "idf_weights_const", None)
    tokens = np.asarray(layer.get_vocabulary()).tolist()
    return {"vocabulary": tokens, "idf_weights": None if weights is None else weights.numpy()[: len(tokens)]}


def _read_constants(layer):
    """Return a text that changes with the values that a compiled function contains as constants."""
    constants = [getattr(layer, name, None) for name in ("mean", "variance")]
    values = [None if each is None else np.asarray(keras.ops.convert_to_numpy(each)).tobytes() for each in constants]
    return str([values, _read_adapted(layer)])


@functools.cache
def _internal_names() -> set[str]:
    """Return the attributes of every model, also those that `fit` adds."""
    model = keras.Sequential(name="model")
    model.compile(loss="mse")
    added = ("_build_shapes_dict", "_eval_epoch_iterator", "_expected_batch_size", "_jax_state", "_path")
    return {*vars(model), *added, "_parent_path", "_should_eval", "history", "stop_evaluating", "stop_predicting"}


# Attributes of Keras that change in `fit`, also those of subclasses.
_CHANGING = ("built", "_exclude_from_weight_decay_cache")


def _is_internal(owner, name):
    """Return True if an attribute of an object of Keras belongs to Keras and may change in `fit`."""
    # TensorFlow's list of dependencies repeats the attributes.
    is_private = name.startswith("_self_") or (name.startswith("_") and type(owner).__module__.startswith("keras."))
    return is_private or (isinstance(owner, keras.layers.Layer) and name in _internal_names()) or name in _CHANGING


# Entries of `state_attributes` that are not attributes which can be assigned.
DERIVED = ("layers", "loss", "metrics", "optimizer", "variables")


def state_attributes(owner: Any, variables: bool) -> dict[str, object]:
    """Return the attributes of a layer, optimizer, metric, loss or seed generator that may be state, and its parts.

    Args:
        owner: object of Keras.
        variables: if True, the variables of the object are included.
    """
    maps = OPTIMIZER_MAPS_SINCE_3_15
    found = {
        name: value for name, value in vars(owner).items() if isinstance(owner, maps) or not _is_internal(owner, name)
    }
    if variables and not isinstance(owner, maps):
        own = owner.variables if hasattr(owner, "variables") else [owner.state]
        found["variables"] = (*own, *(recurrent_states(owner) if isinstance(owner, keras.layers.Layer) else ()))
    if isinstance(owner, keras.layers.Layer):
        found["trainable"] = owner.trainable
        found["layers"] = tuple(owner._flatten_layers(include_self=False, recursive=False))
    if isinstance(owner, keras.Model):
        config = getattr(owner, "_compile_config", None)
        loss = None if config is None else config.config.get("loss")
        found |= {"optimizer": getattr(owner, "optimizer", None), "metrics": tuple(owner.metrics), "loss": loss}
    return found
