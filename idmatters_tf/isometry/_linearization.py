"""The derivative of a function at a point as a linear map, computed once and applied many times, on either backend."""

import abc
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmatters_tf.curvature._products import backend_of

Array = NDArray[np.floating[Any]]


class Linearization(abc.ABC):
    """A function's derivative J at a point.

    The function is evaluated once, with the weights of that moment; what its derivative needs is kept.

    Attributes:
        input_shape, output_shape: of the point and of the function's value there.
        dtype: of vectors, "float64" for functions of float64, "float32" for all others.
    """

    def __init__(self, input_shape: tuple[int, ...], output_shape: tuple[int, ...], double: bool):
        self.input_shape, self.output_shape = tuple(input_shape), tuple(output_shape)
        self.dtype = "float64" if double else "float32"

    @abc.abstractmethod
    def jvp(self, vector: Array) -> Array:
        """J v, for a v of `input_shape`."""

    @abc.abstractmethod
    def vjp(self, vector: Array) -> Array:
        """J^T u, for a u of `output_shape`."""


def linearize(function: Callable[[Any], Any], point: Any) -> Linearization:
    """The derivative of a function of one tensor at a point.

    Args:
        function: of Keras operations and layers.
        point: a floating-point tensor.

    Raises:
        ValueError: for a backend other than TensorFlow and JAX, and where TensorFlow lacks a derivative.
    """
    if backend_of("Jacobians need") == "jax":
        from idmatters_tf.isometry._jax_linearization import JaxLinearization

        return JaxLinearization(function, point)
    from idmatters_tf.isometry._tensorflow_linearization import TensorFlowLinearization

    return TensorFlowLinearization(function, point)
