"""SciPy operators: their base class, conversion of matrices to operators, and columns by products with unit vectors."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import DTypeLike, NDArray

from idmatters_tf._presentation.progress import Progress

# Arrays of float32 or float64.
Array: TypeAlias = NDArray[np.floating[Any]]
# What `as_operator` converts: a dense or sparse matrix, or an operator.
Matrix: TypeAlias = NDArray[Any] | scipy.sparse.sparray | scipy.sparse.spmatrix | scipy.sparse.linalg.LinearOperator


class Operator(scipy.sparse.linalg.LinearOperator):
    """SciPy operator of a subclass that implements `_matvec` and its variants.

    Args:
        dtype: dtype of the products.
        shape: (rows, columns).
    """

    if TYPE_CHECKING:
        # SciPy annotates its own with the arguments of operators made from functions.
        def __new__(cls, *args: object, **options: object) -> Self: ...

    def __init__(self, dtype: DTypeLike, shape: tuple[int, int]):
        super().__init__(np.dtype(dtype), shape)  # pyright: ignore[reportCallIssue]


def as_operator(operator: Matrix) -> scipy.sparse.linalg.LinearOperator:
    """Return a matrix or SciPy operator as an operator in float32 or float64.

    Raises:
        ValueError: for complex matrices, and for operators of other dtypes.
    """
    converted: Any = operator
    is_matrix = isinstance(operator, np.ndarray) or scipy.sparse.issparse(operator)
    if is_matrix and converted.dtype.kind in "biuf":
        converted = converted.astype(np.result_type(converted.dtype, np.float32))
    operator = scipy.sparse.linalg.aslinearoperator(converted)
    if operator.dtype.name not in ("float32", "float64"):
        raise ValueError(
            f"Argument `operator` must be a real matrix, or an operator of dtype float32 or float64. Received: dtype "
            f"{operator.dtype}"
        )
    return operator


def magnitude(values: Array) -> float:
    """Return the power of two at or below the largest |value|; 0 for zeros, NaN if a value is not finite."""
    largest = float(np.abs(values).max())
    if not 0 < largest < np.inf:
        return 0.0 if largest == 0 else np.nan
    return float(np.ldexp(1.0, np.frexp(largest)[1] - 1))


def unit_vectors(size: int, chunk: int, wanted: slice, dtype: DTypeLike = float) -> Iterator[tuple[slice, Array]]:
    """Yield unit vectors in chunks of equal size, (span, (k, size)).

    The span is that of the last vectors of the chunk. The last chunk starts with vectors of the previous one, so
    that all chunks have the same shape and a compiled product is traced once. An empty range gives one empty vector,
    from which the shapes of the products are known.

    Args:
        size: number of entries of a vector.
        chunk: largest number of vectors in a chunk.
        wanted: range of the entries that are 1.
        dtype: dtype of the vectors.
    """
    chunk = max(min(chunk, wanted.stop - wanted.start), 1)
    for start in range(wanted.start, max(wanted.stop, wanted.start + 1), chunk):
        stop = min(start + chunk, wanted.stop)
        yield slice(start, stop), np.eye(chunk, size, stop - chunk, dtype)


def columns(
    operator: scipy.sparse.linalg.LinearOperator, wanted: slice, title: str, progress: bool
) -> Iterator[tuple[slice, Array]]:
    """Yield a range of columns of a SciPy operator in chunks of its attribute `chunk`, or 64, (slice, (P, chunk))."""
    chunk = getattr(operator, "chunk", 64)
    with Progress(wanted.stop - wanted.start, title, progress, unit="columns") as bar:
        for span, vectors in unit_vectors(operator.shape[1], chunk, wanted, operator.dtype):
            products = np.asarray(operator @ vectors.T)[:, span.start - span.stop :]
            bar.advance(span.stop - span.start)
            yield span, products
