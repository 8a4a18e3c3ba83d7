"""Internals of TensorFlow 2.21. TensorFlow is not imported: the objects passed in are its own, or of other kinds."""

import inspect
from typing import Any

import keras

_GENERATOR = ("tensorflow.python.ops.stateful_random_ops", "Generator")


def traced_training_steps(model: keras.Model) -> list[Any]:
    """Return the concrete functions of the training step that have been traced so far."""
    train_function: Any = getattr(model, "train_function", None)
    if not inspect.isfunction(train_function):
        return []
    parts = inspect.getclosurevars(train_function).nonlocals.values()
    found = [part._list_all_concrete_functions() for part in parts if hasattr(part, "_list_all_concrete_functions")]
    return [concrete for several in found for concrete in several]


def is_random_generator(value: Any) -> bool:
    """Return True for a `tf.random.Generator`."""
    return any((each.__module__, each.__name__) == _GENERATOR for each in type(value).__mro__)


def is_reshuffled(data: Any) -> bool:
    """Return True for a `tf.data.Dataset` that is shuffled in another order at each iteration."""
    if not any(kind.__name__ == "DatasetV2" for kind in type(data).__mro__):
        return False
    if "Shuffle" in type(data).__name__ and getattr(data, "_reshuffle_each_iteration", True):
        return True
    return any(is_reshuffled(each) for each in data._inputs())
