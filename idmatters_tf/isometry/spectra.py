"""Singular values of any SciPy operator: all of them where it is small, the ends and the density where it is not."""

import dataclasses
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import scipy.sparse.linalg
from numpy.typing import ArrayLike, NDArray

from idmatters_tf._arguments import positive_integer
from idmatters_tf.curvature.density import SpectralDensity, smoothed, spectral_density
from idmatters_tf.curvature.eigenpairs import top_eigenpairs

Floats = NDArray[np.float64]

# Up to this many rows or columns, whichever are fewer, a matrix is decomposed as a whole: a minute on two cores.
LARGEST_DENSE = 4096
# Up to this many, iterations are not worth their while.
SMALL = 256


@dataclasses.dataclass(frozen=True)
class ExtremeSingularValues:
    """Singular values at both ends.

    Attributes:
        largest: (k,), in descending order.
        smallest: (k,), in ascending order. Of a matrix with fewer rows than columns, or the other way round, only the
            min(rows, columns) singular values count, not the zeros of the directions that are left over.
        exact: whether all singular values were computed.
        products: how many products with the matrix and its adjoint it took, pairs.
    """

    largest: Floats
    smallest: Floats
    exact: bool
    products: int


class GramOperator(scipy.sparse.linalg.LinearOperator):
    """A^T A or A A^T, whichever is smaller: symmetric, and its eigenvalues are the squares of the singular values."""

    if TYPE_CHECKING:

        def __new__(cls, *args: Any, **options: Any) -> Self: ...

    def __init__(self, operator: Any):
        self._operator = operator
        rows, columns = operator.shape
        self._wide = rows < columns
        super().__init__(np.dtype(operator.dtype), (min(rows, columns),) * 2)  # pyright: ignore[reportCallIssue]

    def _matvec(self, vector: ArrayLike) -> NDArray[Any]:
        flat = np.ravel(vector)
        if self._wide:
            return self._operator.matvec(self._operator.rmatvec(flat))
        return self._operator.rmatvec(self._operator.matvec(flat))

    def _matmat(self, matrix: ArrayLike) -> NDArray[Any]:
        if self._wide:
            return self._operator.matmat(self._operator.rmatmat(matrix))
        return self._operator.rmatmat(self._operator.matmat(matrix))

    def _adjoint(self) -> "GramOperator":
        return self


def singular_values(operator: Any) -> Floats:
    """All singular values of a linear map.

    Args:
        operator: a matrix or SciPy operator: a `JacobianOperator`, a `ConvolutionOperator`, or one of your own with
            products from both sides. A convolution with periodic padding has them by Fourier transforms, whatever its
            size; of everything else the dense matrix is made.

    Returns:
        (min(shape),) float64, in descending order.

    Raises:
        ValueError: for a map with more than 4,096 rows and columns that is no periodic convolution.

    Example:

    >>> singular_values(np.diag([3.0, -4.0]))
    array([4., 3.])
    """
    if hasattr(operator, "singular_values"):
        return operator.singular_values()
    return dense_singular_values(scipy.sparse.linalg.aslinearoperator(operator))


def dense_singular_values(operator: Any, instead: str = "") -> Floats:
    """All singular values, from the dense matrix.

    Args:
        operator: a SciPy operator.
        instead: one more remedy where it is too large.
    """
    least = min(operator.shape)
    if least > LARGEST_DENSE:
        raise ValueError(
            f"All singular values of a map with {operator.shape[0]:,} rows and {operator.shape[1]:,} columns would "
            f"need its dense matrix; at most {LARGEST_DENSE:,} of either are allowed. Use extreme_singular_values or "
            f"singular_value_density, which need products alone{', ' + instead if instead else ''}."
        )
    return np.asarray(np.linalg.svd(dense(operator), compute_uv=False), np.float64)


def dense(operator: Any) -> Floats:
    """The matrix of an operator, from its smaller side."""
    rows, columns = operator.shape
    if rows < columns:
        return np.asarray(operator.rmatmat(np.eye(rows, dtype=operator.dtype)), np.float64).T
    return np.asarray(operator.matmat(np.eye(columns, dtype=operator.dtype)), np.float64)


def extreme_singular_values(
    operator: Any, k: int = 1, tolerance: float = 1e-3, seed: int = 0, progress: bool = False
) -> ExtremeSingularValues:
    """The largest and the smallest singular values of a linear map.

    By block Lanczos iterations on A^T A or A A^T, whichever is smaller: in exact arithmetic that is Golub & Kahan's
    bidiagonalisation (1965). In floating point the squares blur what is small: singular values below
    sqrt(eps) of the largest one, 3e-4 in float32 and 1.5e-8 in float64, are rounding. Up to 256 rows or columns all
    singular values are computed from the dense matrix, without that limit.

    Args:
        operator: a matrix or SciPy operator with products from both sides.
        k: how many at each end.
        tolerance: of the residuals of A^T A, relative to its largest eigenvalue. It bounds the error of the squares of
            all singular values, so that half of it bounds the relative error of the largest ones; where eigenvalues are
            well separated all are far more accurate. The smallest ones of a badly conditioned map need a small
            tolerance and many products.
        seed: of the starting vectors.
        progress: whether a bar on standard error counts the products.

    Returns:
        `ExtremeSingularValues`.
    """
    operator = scipy.sparse.linalg.aslinearoperator(operator)
    least = min(operator.shape)
    if positive_integer("k", k) > least:
        raise ValueError(f"Argument `k` must ask for 1 to {least} singular values. Received: k={k}")
    if least <= max(SMALL, 2 * k):
        values = dense_singular_values(operator)
        return ExtremeSingularValues(values[:k], values[::-1][:k], True, least)
    pairs = top_eigenpairs(GramOperator(operator), k, "both", tolerance, seed=seed, progress=progress)
    values = np.sqrt(np.maximum(pairs.values, 0))
    return ExtremeSingularValues(values[:k], values[::-1][:k], False, pairs.products)


def spectral_norm(operator: Any, tolerance: float = 1e-3, seed: int = 0) -> float:
    """Return the largest singular value of a linear map.

    It is exact for arrays, for operators with at most 256 rows or columns, and for periodic convolutions.

    Args:
        operator: a matrix or SciPy operator with products from both sides. A convolution's kernel is passed as a
            `ConvolutionOperator`, whose method of the same name is called.
        tolerance: relative accuracy of Lanczos iterations, see `extreme_singular_values`.
        seed: of the starting vectors.

    Raises:
        ValueError: for arrays other than matrices.

    Example:

    >>> spectral_norm(np.diag([3.0, -4.0]))
    4.0
    """
    if hasattr(operator, "spectral_norm"):
        return operator.spectral_norm(tolerance, seed)
    if isinstance(operator, np.ndarray):
        if operator.ndim != 2:
            raise ValueError(
                f"Argument `operator` must be a matrix or SciPy operator. Received: array of shape {operator.shape}. "
                f"Pass a convolution's kernel as ConvolutionOperator(kernel, size)."
            )
        return float(np.linalg.norm(operator, 2))
    operator = scipy.sparse.linalg.aslinearoperator(operator)
    if min(operator.shape) <= SMALL:
        return float(np.linalg.norm(dense(operator), 2))
    gram = GramOperator(operator)
    # Lanczos cannot tell how small a residual is of a map that is zero.
    probe = np.random.default_rng(seed).normal(size=gram.shape[0]).astype(gram.dtype)
    if not np.any(gram @ probe):
        return 0.0
    return float(np.sqrt(max(top_eigenpairs(gram, 1, "largest", tolerance, seed=seed).values[0], 0.0)))


def singular_value_density(
    operator: Any,
    probes: int = 4,
    steps: int = 40,
    points: int = 400,
    bandwidth: float | None = None,
    seed: int = 0,
    progress: bool = False,
) -> SpectralDensity:
    """The density of a map's singular values, by stochastic Lanczos quadrature on A^T A or A A^T.

    The nodes of `idmatters_tf.curvature.spectral_density` are squares of singular values; here are their roots, with
    the same weights.

    Args:
        operator: a matrix or SciPy operator with products from both sides.
        probes, steps, points, bandwidth, seed, progress: see `idmatters_tf.curvature.spectral_density`.

    Returns:
        `SpectralDensity` of the min(shape) singular values.
    """
    gram = GramOperator(scipy.sparse.linalg.aslinearoperator(operator))
    squares = spectral_density(gram, probes, steps, points, seed=seed, progress=progress)
    return smoothed(np.sqrt(np.maximum(squares.nodes, 0)), squares.weights, points, bandwidth)
