"""Objects of callbacks that exist when training begins.

Each has a name, by which a restarted process finds its own one. Other objects refer to it, and its content is restored
in place.
"""

import logging
import re
import sys
import types
from typing import Any

import keras
import numpy as np

from idmatters_tf._keras_internals import layers_within
from idmatters_tf.callbacks import _devices, _training_state
from idmatters_tf.callbacks._encoding import NotPlainData, is_variable

# Training does not change objects of these types, or their values do not affect training.
_SETTINGS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
    re.Pattern,
    logging.Logger,
    np.dtype,
    keras.losses.Loss,
    keras.initializers.Initializer,
    keras.optimizers.schedules.LearningRateSchedule,
)
_OWNERS = (keras.layers.Layer, keras.metrics.Metric, keras.optimizers.Optimizer)


class KnownObjects:
    """Objects that exist when training begins, for a `Snapshot`.

    Args:
        model: built and compiled model, whose parts have names from the beginning.

    Attributes:
        names: name of each object, by its `id`.
        objects: the objects by name.
    """

    def __init__(self, model: keras.Model):
        self.names: dict[int, str] = {}
        self.objects: dict[str | None, Any] = {}
        trained = _training_state.variables(model)
        self._trained = {id(variable) for several in trained.values() for variable in several}
        # Numbers of variables by the `id` of the object.
        self._counts: dict[int, int] = {}
        parts = {"layer": layers_within(model), "metric": model.metrics, **trained}
        for group, several in [
            *parts.items(),
            *((path, [part]) for path, part in _training_state.find_optimizers(model).items()),
        ]:
            for index, part in enumerate(several):
                self.add(f"{group} {index}", part)

    def add(self, name: str, value: Any) -> None:
        """Name an object that has no name, unless the name is that of another object."""
        if id(value) not in self.names and name not in self.objects:
            self.names[id(value)] = name
            self.objects[name] = value

    def add_settings(self, module: str) -> None:
        """Name the functions, classes and other settings in the namespace of an imported module."""
        for name, value in vars(sys.modules[module]).items():
            if isinstance(value, _SETTINGS):
                self.add(f"{module}.{name}", value)

    def describe(self, value: Any) -> tuple[Any] | None:
        """Return the content of an object, the values of its variables or None; None for immutable data.

        Raises:
            NotPlainData: the object has variables that did not exist when training began.
        """
        variables = self._own_variables(value)
        if variables is None:
            return (None,) if id(value) in self.names or isinstance(value, _SETTINGS) else None
        if len(variables) != self._counts.setdefault(id(value), len(variables)):
            raise NotPlainData(f"{type(value).__name__} with variables created during training")
        return ([_devices.read(variable) for variable in variables],)

    def restore(self, name: str | None, content: Any) -> Any:
        """Return an object after the restoration of its content. Raise ValueError if it does not exist."""
        if name not in self.objects:
            raise ValueError(f"The checkpoint refers to {name}, which does not exist. Start the same script again.")
        target = self.objects[name]
        for variable, saved in zip(self._own_variables(target) or (), content or (), strict=True):
            _devices.assign(variable, saved)
        return target

    def _own_variables(self, value):
        """Return the variables of an object that are not restored with the model; None if it cannot have any."""
        if is_variable(value):
            variables = [value]
        elif isinstance(value, _OWNERS):
            variables = value.variables
        else:
            return None
        return [each for each in variables if id(each) not in self._trained]
