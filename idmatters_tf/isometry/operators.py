"""Jacobian of a function at a point, as a SciPy operator."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike, NDArray

from idmatters_tf._arguments import positive_integer
from idmatters_tf._keras_internals import get_mask
from idmatters_tf._keras_types import Tensor
from idmatters_tf.autodiff import Linearization, linearize
from idmatters_tf.spectra.operators import Operator

DEFAULT_CHUNK = 16

Array: TypeAlias = NDArray[np.floating[Any]]


class JacobianOperator(Operator):
    """Matrix-free Jacobian of a function at a point, with products from both sides.

    The function is linearized once, when the operator is built. Unlike a `HessianOperator`, the operator does not
    follow a model in training. J v costs about one evaluation of the function, J^T u about one and a half.

    The shape is `(output entries, input entries)`, both flattened by rows. For several examples it is the Jacobian of
    the whole batch, which is block-diagonal for a separable function. The dtype is float64 for functions of float64,
    otherwise float32. `idmatters_tf.autodiff.jacobian` returns a dense matrix.

    Args:
        function: function of Keras operations and layers, from one tensor to one tensor.
        point: floating-point tensor, (examples, ...).
        separable: False if the function couples the examples of a batch. If True, several products are computed at
            once, on copies of the point, unless the derivative of one copy by another is not zero.
        chunk: number of copies at once. Memory grows with it.

    Raises:
        ValueError: if the point has a mask that Keras has attached.

    Example:

    >>> jacobian = JacobianOperator(keras.ops.square, np.array([[1.0, 2.0, 3.0]], "float32"))
    >>> jacobian @ np.ones(3)
    array([2., 4., 6.], dtype=float32)
    """

    def __init__(
        self, function: Callable[[Tensor], Tensor], point: Tensor, separable: bool = True, chunk: int = DEFAULT_CHUNK
    ):
        self._function = function
        self._point: Tensor = ops.convert_to_tensor(point)
        check_unmasked(self._point, "Argument `point`")
        self._separable = separable
        self._chunk = positive_integer("chunk", chunk)
        self._single = linearize(function, self._point)
        self._copies: Linearization | None = None
        self.input_shape = tuple(self._point.shape)
        self.output_shape = tuple(self._single.value.shape)
        double = keras.backend.standardize_dtype(self._point.dtype) == "float64"
        shape = int(np.prod(self.output_shape)), int(np.prod(self.input_shape))
        super().__init__("float64" if double else "float32", shape)

    def _matvec(self, vector: ArrayLike) -> Array:
        return self._product(self._single.jvp, np.asarray(vector, self.dtype).reshape(self.input_shape)).ravel()

    def _rmatvec(self, vector: ArrayLike) -> Array:
        return self._product(self._single.vjp, np.asarray(vector, self.dtype).reshape(self.output_shape)).ravel()

    def _matmat(self, matrix: ArrayLike) -> Array:
        return self._products("jvp", np.asarray(matrix, self.dtype).T, self.input_shape)

    def _rmatmat(self, matrix: ArrayLike) -> Array:
        return self._products("vjp", np.asarray(matrix, self.dtype).T, self.output_shape)

    def _product(self, linear_map: Callable[[Array], Tensor], vector: Array) -> Array:
        return np.asarray(ops.convert_to_numpy(ops.cast(linear_map(vector), self.dtype.name)))

    def _products(self, kind: Literal["jvp", "vjp"], vectors: Array, shape: tuple[int, ...]) -> Array:
        """Return the products with the rows, as columns."""
        vectors = vectors.reshape(len(vectors), *shape)
        if len(vectors) >= self._chunk // 2 and self._separable and self._copies is None:
            self._linearize_copies()
        if self._copies is None or len(vectors) < self._chunk // 2:
            single = getattr(self._single, kind)
            return np.stack([self._product(single, vector).ravel() for vector in vectors], axis=1)
        columns = []
        for start in range(0, len(vectors), self._chunk):
            part = vectors[start : start + self._chunk]
            stacked = np.zeros((self._chunk, *shape), self.dtype)
            stacked[: len(part)] = part
            products = self._product(getattr(self._copies, kind), stacked.reshape(-1, *shape[1:])).reshape(
                self._chunk, -1
            )
            columns.append(products[: len(part)])
        return np.concatenate(columns).T

    def _linearize_copies(self) -> None:
        """Linearize the function at copies of the point, unless the copies affect one another."""
        points: Tensor = ops.concatenate([self._point] * self._chunk)
        linearized = linearize(self._function, points)
        self._separable = not couples_rows(linearized, tuple(points.shape), self.input_shape[0])
        self._copies = linearized if self._separable else None


def couples_rows(linearized: Linearization, shape: tuple[int, ...], rows: int) -> bool:
    """Return True if a change of the first `rows` rows of a point of some shape changes other rows of the output."""
    change = np.zeros(shape, "float32")
    change[:rows] = np.random.default_rng(0).standard_normal((rows, *shape[1:]))
    changed: Tensor = ops.convert_to_numpy(linearized.jvp(change))
    return bool(np.any(changed[rows:]))


def check_unmasked(tensor: Tensor, title: str) -> None:
    """Raise ValueError if Keras has attached a mask to a tensor."""
    if get_mask(tensor) is not None:
        raise mask_error(title)


def mask_error(title: str) -> ValueError:
    """Return the error of a tensor with a mask."""
    return ValueError(
        f"{title} has a mask of Keras, which Jacobians do not support. Name blocks without masks, or build the model "
        f"without `Masking` and `mask_zero=True` for sequences of one length. `layer_influence` supports masks."
    )
