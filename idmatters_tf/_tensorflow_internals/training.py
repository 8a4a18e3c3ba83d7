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
    steps = [part for part in parts if hasattr(part, "_list_all_concrete_functions")]
    return [concrete for step in steps for concrete in step._list_all_concrete_functions()]


def is_random_generator(value: Any) -> bool:
    """Return True for a `tf.random.Generator`."""
    return any((kind.__module__, kind.__name__) == _GENERATOR for kind in type(value).__mro__)
