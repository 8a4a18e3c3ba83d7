"""Internals of TensorFlow 2.21 for training steps. TensorFlow is not imported."""

import inspect
from typing import Any

import keras


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
