"""Internals of TensorFlow 2.21 for training steps and random generators. TensorFlow is not imported."""

import inspect
from typing import Any

import keras

_GENERATOR = ("tensorflow.python.ops.stateful_random_ops", "Generator")


def traced_training_steps(model: keras.Model) -> list[Any]:
    """Return the concrete functions of the training step that have been traced so far."""
    train_function: Any = getattr(model, "train_function", None)
    if not inspect.isfunction(train_function):
        return []
    parts = list(inspect.getclosurevars(train_function).nonlocals.values())
    # Keras wraps the step for Python iterators.
    parts += [part.__wrapped__ for part in parts if hasattr(part, "__wrapped__")]
    graphs = [part._list_all_concrete_functions() for part in parts if hasattr(part, "_list_all_concrete_functions")]
    return [concrete for several in graphs for concrete in several]


def is_random_generator(kind: type) -> bool:
    """Return True for the class `tf.random.Generator` and its subclasses."""
    return any((base.__module__, base.__name__) == _GENERATOR for base in kind.__mro__)
