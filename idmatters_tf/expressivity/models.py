"""Keras model that keeps float64 inputs."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras


@keras.saving.register_keras_serializable("idmatters_tf")
class ExactModel(keras.Model):
    """Functional model whose `predict`, `evaluate` and `fit` keep float64 arrays.

    Keras rounds floating-point arrays to `keras.config.floatx()` before it passes them to a model of any dtype.
    """

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Call `keras.Model.predict` with the dtype of the model."""
        with _use_floatx(self):
            return super().predict(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Call `keras.Model.evaluate` with the dtype of the model."""
        with _use_floatx(self):
            return super().evaluate(*args, **kwargs)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Call `keras.Model.fit` with the dtype of the model."""
        with _use_floatx(self):
            return super().fit(*args, **kwargs)


@contextlib.contextmanager
def _use_floatx(model: keras.Model) -> Iterator[None]:
    before = keras.config.floatx()
    keras.config.set_floatx(keras.backend.standardize_dtype(model.inputs[0].dtype))
    try:
        yield
    finally:
        keras.config.set_floatx(before)
