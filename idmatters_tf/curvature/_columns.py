"""Conversion of matrices to operators, and columns of an operator by products with unit vectors."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import NDArray

from idmatters_tf._progress import Progress


def as_operator(operator: Any) -> scipy.sparse.linalg.LinearOperator:
    """Return a matrix or SciPy operator as an operator in float32 or float64.

    Raises:
        ValueError: for complex matrices, and for operators of other dtypes.
    """
    converted: Any = operator
    is_matrix = isinstance(operator, np.ndarray) or scipy.sparse.issparse(operator)
    if is_matrix and converted.dtype.kind in "biuf":
        converted = converted.astype(np.result_type(converted.dtype, np.float32))
    operator = scipy.sparse.linalg.aslinearoperator(converted)
    if operator.dtype not in (np.float32, np.float64):
        raise ValueError(
            f"Argument `operator` must be a real matrix, or an operator of dtype float32 or float64. Received: dtype "
            f"{operator.dtype}"
        )
    return operator


def columns(operator: Any, wanted: slice, title: str, progress: bool) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield columns of an operator in chunks, (slice, (P, up to chunk)).

    Args:
        operator: SciPy operator, with an attribute `chunk` for chunks of other sizes than 64.
        wanted: range of the columns.
        title: title of the progress bar.
        progress: True shows a progress bar on standard error.
    """
    chunk = getattr(operator, "chunk", 64)
    with Progress(wanted.stop - wanted.start, title, progress, unit="columns") as bar:
        for start in range(wanted.start, wanted.stop, chunk):
            stop = min(start + chunk, wanted.stop)
            # The last chunk has the size of the others, to avoid another trace.
            first = max(min(start, wanted.stop - chunk), wanted.start)
            units = np.zeros((operator.shape[0], stop - first), operator.dtype)
            units[np.arange(first, stop), np.arange(stop - first)] = 1
            products = np.asarray(operator @ units)[:, start - first :]
            bar.advance(stop - start)
            yield slice(start, stop), products
