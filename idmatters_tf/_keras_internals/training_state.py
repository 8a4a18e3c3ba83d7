"""Internals of Keras for a training that leaves no trace in a model."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras


@contextlib.contextmanager
def kept_training_state(model: keras.Model) -> Iterator[None]:
    """Restore weights, metrics, optimizer, compiled functions and other attributes of a model at the end.

    Compiled metrics are left out inside of the context.
    """
    inside: Any = model
    attributes, metrics = dict(vars(model)), list(inside._metrics)
    variables = [*model.variables, *model.metrics_variables]
    values = [keras.ops.convert_to_numpy(variable) for variable in variables]
    if attributes.get("_compile_metrics") is not None:
        inside._compile_metrics = None
    try:
        yield
    finally:
        # By `setattr`, so that TensorFlow's checkpoints contain the old objects again.
        for name in list(vars(model)):
            if name not in attributes:
                delattr(model, name)
            elif vars(model)[name] is not attributes[name]:
                setattr(model, name, attributes[name])
                # TensorFlow wraps dicts.
                model.__dict__[name] = attributes[name]
        inside._metrics[:] = metrics
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
