"""Keras models that are given float64 arrays as they are."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras


@keras.saving.register_keras_serializable("idmatters_tf")
class ExactModel(keras.Model):
    """A functional model whose `predict`, `evaluate` and `fit` leave float64 arrays as they are.

    Keras rounds arrays of floats to `keras.config.floatx()` before a model sees them, whatever the model's own dtype.
    """

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.predict`."""
        with _floatx_of(self):
            return super().predict(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.evaluate`."""
        with _floatx_of(self):
            return super().evaluate(*args, **kwargs)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.fit`."""
        with _floatx_of(self):
            return super().fit(*args, **kwargs)


@contextlib.contextmanager
def _floatx_of(model: keras.Model) -> Iterator[None]:
    before = keras.config.floatx()
    keras.config.set_floatx(keras.backend.standardize_dtype(model.inputs[0].dtype))
    try:
        yield
    finally:
        keras.config.set_floatx(before)
