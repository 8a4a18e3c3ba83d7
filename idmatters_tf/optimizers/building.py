"""Building of an optimizer for a model, and a new one with the settings of another."""

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

import keras

from idmatters_tf import _keras_internals
from idmatters_tf._keras_types import Options
from idmatters_tf.optimizers.muon import Muon

# Function of an optimizer without loss scaling and its configuration that returns a new one.
MakeOptimizer: TypeAlias = Callable[[keras.optimizers.Optimizer, Options], keras.optimizers.Optimizer]


def build_optimizer(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> None:
    """Build an optimizer for the trainable variables of a model. `Muon`, also inside of it, learns the layers."""
    inner = _keras_internals.inner_optimizer(optimizer)
    if isinstance(inner, Muon):
        inner.build_for(model)
    optimizer.build(model.trainable_variables)


def new_optimizer(
    optimizer: keras.optimizers.Optimizer,
    original: keras.Model,
    variables: Mapping[int, keras.Variable],
    make: MakeOptimizer = lambda optimizer, config: type(optimizer).from_config(config),
) -> keras.optimizers.Optimizer:
    """Return an optimizer with the same settings and no state.

    Args:
        optimizer: a Keras optimizer.
        original: the model of the optimizer.
        variables: dict from `id` of the original's variables to the variables of the new optimizer.
        make: function of an optimizer without loss scaling and its configuration that returns the new one.
    """
    config = optimizer.get_config()
    schedule = _keras_internals.learning_rate_schedule(optimizer)
    if schedule is not None:
        # The object itself, because its class may not be registered.
        config["learning_rate"] = schedule
    if isinstance(optimizer, Muon) and optimizer.matrices is not None:
        # The function, because the configuration has the matrices of the original's variables only.
        config["matrices"] = optimizer.matrices
    try:
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            config["inner_optimizer"] = new_optimizer(optimizer.inner_optimizer, original, variables, make)
            return type(optimizer)(**config)
        new = make(optimizer, config)
    except Exception as error:
        raise ValueError(
            f"Argument `optimizer`: {type(optimizer).__name__} cannot be built from its configuration: {error}"
        ) from error
    excluded, names = _keras_internals.weight_decay_exclusions(optimizer)
    if excluded or names is not None:
        listed = [
            variables[id(variable)]
            for variable in original.variables
            if id(variable) in variables and _keras_internals.variable_key(optimizer, variable) in (excluded or ())
        ]
        new.exclude_from_weight_decay(listed, [names.pattern] if isinstance(names, re.Pattern) else None)
    return new
