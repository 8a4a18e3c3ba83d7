"""Singular values of SciPy operators: all of small ones, extreme values of large ones."""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator

from idmatters_tf._arguments import positive_integer
from idmatters_tf.spectra.eigenpairs import top_eigenpairs
from idmatters_tf.spectra.operators import Array, Matrix, Operator, as_operator, magnitude

Floats = NDArray[np.float64]

# Largest min(rows, columns) of a dense decomposition, which takes a minute on two cores.
LARGEST_DENSE = 4096
# Largest min(rows, columns) for which the dense matrix is cheaper than iterations.
SMALL = 256


@dataclasses.dataclass(frozen=True)
class ExtremeSingularValues:
    """Extreme singular values.

    Attributes:
        largest: (k,), in descending order.
        smallest: (k,), in ascending order, among the min(rows, columns) singular values. The zeros of the remaining
            directions of a rectangular matrix do not count.
        exact: True if all singular values were computed from the dense matrix.
        products: number of pairs of products with the matrix and its adjoint.
        residual: largest error of the squares of the values, as a fraction of the largest square; 0 if exact.
    """

    largest: Floats
    smallest: Floats
    exact: bool
    products: int
    residual: float = 0.0


class GramOperator(Operator):
    """A^T A or A A^T, whichever is smaller, over the square of the scale of A.

    Its eigenvalues are the squares of the singular values over `scale`. Without the scale, they would underflow in
    float32 for singular values below 1e-19.

    Attributes:
        scale: magnitude of the singular values, a power of two. 0 for a zero map, NaN for a map that is not finite.
    """

    def __init__(self, operator: LinearOperator):
        rows, columns = operator.shape
        self._tall = operator if rows >= columns else operator.H
        super().__init__(operator.dtype, (min(rows, columns), min(rows, columns)))
        probe = np.random.default_rng(0).normal(size=columns)
        self.scale = magnitude(operator.matvec(probe.astype(self.dtype)))
        self._factor = self.dtype.type(1 / self.scale if self.scale > 0 else 1)

    def singular_values(self, eigenvalues: Array) -> Floats:
        """Return the singular values of A for eigenvalues of this operator."""
        return self.scale * np.sqrt(np.maximum(eigenvalues, 0))

    def _matvec(self, vector: ArrayLike) -> Array:
        factor = self._factor
        return factor * self._tall.rmatvec(factor * self._tall.matvec(np.ravel(vector)))

    def _matmat(self, matrix: ArrayLike) -> Array:
        factor = self._factor
        return factor * self._tall.rmatmat(factor * self._tall.matmat(np.asarray(matrix)))

    def _adjoint(self) -> "GramOperator":
        return self


def singular_values(operator: Matrix) -> Floats:
    """Return all singular values of a linear map, from the dense matrix.

    Args:
        operator: matrix or SciPy operator with products from both sides, such as
            `idmatters_tf.isometry.JacobianOperator`.

    Returns:
        (min(shape),) float64, in descending order.

    Raises:
        ValueError: if the map has more than 4,096 rows and columns.

    Example:

    >>> singular_values(np.diag([3.0, -4.0]))
    array([4., 3.])
    """
    operator = as_operator(operator)
    if min(operator.shape) > LARGEST_DENSE:
        raise ValueError(
            f"Argument `operator` must have at most {LARGEST_DENSE:,} rows or columns. Received: "
            f"{operator.shape[0]:,} rows and {operator.shape[1]:,} columns. Use extreme_singular_values, or "
            f"end_to_end=False for a model."
        )
    return matrix_singular_values(dense(operator))


def matrix_singular_values(matrix: Floats) -> Floats:
    """Return all singular values of a matrix, in descending order; NaN if an entry is not finite."""
    if not np.isfinite(matrix).all():
        return np.full(min(matrix.shape), np.nan)
    return np.asarray(np.linalg.svd(matrix, compute_uv=False), np.float64)


def dense(operator: LinearOperator) -> Floats:
    """Return the matrix of an operator, from products on its smaller side."""
    rows, columns = operator.shape
    if rows < columns:
        return np.asarray(operator.rmatmat(np.eye(rows, dtype=operator.dtype)), np.float64).T
    return np.asarray(operator.matmat(np.eye(columns, dtype=operator.dtype)), np.float64)


def extreme_singular_values(
    operator: Matrix, k: int = 1, tolerance: float = 1e-3, seed: int = 0, progress: bool = False
) -> ExtremeSingularValues:
    """Return the largest and the smallest singular values of a linear map.

    They are computed by block Lanczos iterations on A^T A or A A^T, whichever is smaller. In exact arithmetic this is
    the bidiagonalization of Golub & Kahan (1965). In floating point, singular values below sqrt(eps) of the largest
    one, 3e-4 in float32 and 1.5e-8 in float64, are rounding errors. Maps with up to 256 rows or columns are decomposed
    as dense matrices, without that limit.

    Args:
        operator: matrix or SciPy operator with products from both sides.
        k: number of singular values at each end.
        tolerance: tolerance of the residuals of A^T A, relative to its largest eigenvalue. It bounds the error of the
            squares of all singular values, and half of it bounds the relative error of the largest ones. Well separated
            values are far more accurate. The smallest values of an ill-conditioned map require a small tolerance and
            many products; after max(2000, 80 k) pairs, the iteration ends with a warning.
        seed: seed of the starting vectors.
        progress: True to show a progress bar on standard error.

    Returns:
        `ExtremeSingularValues`.
    """
    operator = as_operator(operator)
    least = min(operator.shape)
    if positive_integer("k", k) > least:
        raise ValueError(f"Argument `k` must be between 1 and {least}. Received: k={k}")
    if least <= max(SMALL, 2 * k):
        values = singular_values(operator)
        return ExtremeSingularValues(values[:k], values[::-1][:k], True, least)
    gram = GramOperator(operator)
    if np.isnan(gram.scale):
        return ExtremeSingularValues(np.full(k, np.nan), np.full(k, np.nan), False, 1, np.nan)
    pairs = top_eigenpairs(gram, k, "both", tolerance, seed=seed, progress=progress)
    values = gram.singular_values(pairs.values)
    residual = max(float(pairs.residuals.max() / (pairs.values.max() or 1.0)), float(np.finfo(gram.dtype).eps))
    return ExtremeSingularValues(values[:k], values[::-1][:k], False, pairs.products, residual)


def spectral_norm(operator: Matrix, tolerance: float = 1e-3, seed: int = 0) -> float:
    """Return the largest singular value of a linear map.

    The result is exact for arrays and for operators with at most 256 rows or columns.

    Args:
        operator: matrix or SciPy operator with products from both sides. For a
            convolution, pass `idmatters_tf.isometry.JacobianOperator(layer, image)`.
        tolerance: relative accuracy of Lanczos iterations, see `extreme_singular_values`.
        seed: seed of the starting vectors.

    Raises:
        ValueError: if an array is not a matrix.

    Example:

    >>> spectral_norm(np.diag([3.0, -4.0]))
    4.0
    """
    if (method := getattr(operator, "spectral_norm", None)) is not None:
        return method(tolerance, seed)
    if isinstance(operator, np.ndarray):
        if operator.ndim != 2:
            raise ValueError(
                f"Argument `operator` must be a matrix or SciPy operator. Received: array of shape {operator.shape}. "
                f"Pass a convolution as idmatters_tf.isometry.JacobianOperator(layer, image)."
            )
        return float(matrix_singular_values(np.asarray(operator, np.result_type(operator, np.float32)))[0])
    operator = as_operator(operator)
    if min(operator.shape) <= SMALL:
        return float(singular_values(operator)[0])
    gram = GramOperator(operator)
    # Lanczos residuals are relative to the map and undefined for a zero map.
    if not gram.scale > 0:
        return gram.scale
    return float(gram.singular_values(top_eigenpairs(gram, 1, "largest", tolerance, seed=seed).values)[0])
