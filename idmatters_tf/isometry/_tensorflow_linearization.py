"""A function's derivative by TensorFlow's tapes, recorded once, eagerly: no graph is traced for each block."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from idmatters_tf.curvature import _tapes
from idmatters_tf.isometry._linearization import Array, Linearization


class TensorFlowLinearization(Linearization):
    """`Linearization` on Keras' TensorFlow backend."""

    def __init__(self, function: Callable[[Any], Any], point: Any):
        self._point: Any = tf.convert_to_tensor(point)
        self._tape = tf.GradientTape(persistent=True, watch_accessed_variables=False)
        with self._tape:
            self._tape.watch(self._point)
            self._outputs: Any = tf.convert_to_tensor(function(self._point))
        try:
            self._jvp = _tapes.jvp(self._tape, [self._point], [self._outputs], repeatedly=True)
        except LookupError as error:
            raise ValueError(
                f"TensorFlow cannot multiply this function's Jacobian with a vector: {error}. Use KERAS_BACKEND=jax."
            ) from error
        super().__init__(self._point.shape, self._outputs.shape, self._point.dtype == tf.float64)

    def jvp(self, vector: Array) -> Array:
        (product,) = self._jvp([tf.cast(vector, self._point.dtype)])
        return tf.cast(product, self.dtype).numpy()

    def vjp(self, vector: Array) -> Array:
        (product,) = _tapes.gradient(self._tape, [self._outputs], [self._point], [tf.cast(vector, self._outputs.dtype)])
        return tf.cast(product, self.dtype).numpy()
