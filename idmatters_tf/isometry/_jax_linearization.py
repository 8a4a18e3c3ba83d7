"""A function's derivative by `jax.linearize`, and its transpose."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from idmatters_tf.isometry._linearization import Array, Linearization


class JaxLinearization(Linearization):
    """`Linearization` on Keras' JAX backend."""

    def __init__(self, function: Callable[[Any], Any], point: Any):
        self._point = jnp.asarray(point)
        self._outputs, self._jvp = jax.linearize(function, self._point)
        self._vjp = jax.linear_transpose(self._jvp, self._point)
        super().__init__(self._point.shape, self._outputs.shape, self._point.dtype == jnp.float64)

    def jvp(self, vector: Array) -> Array:
        return np.asarray(self._jvp(jnp.asarray(vector, self._point.dtype)), self.dtype)

    def vjp(self, vector: Array) -> Array:
        (product,) = self._vjp(jnp.asarray(vector, self._outputs.dtype))
        return np.asarray(product, self.dtype)
