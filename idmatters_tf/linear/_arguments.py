"""Argument checks of this package (real, finite, correct shape) and type aliases."""

import numbers
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Types of the results and of converted arguments.
Floats: TypeAlias = NDArray[np.float64]
Booleans: TypeAlias = NDArray[np.bool_]
Integers: TypeAlias = NDArray[np.int64]


def real_array(name: str, value: ArrayLike, shape: tuple[int | str, ...] | None) -> Floats:
    """Return `value` as a checked float64 array, without a copy if it is one.

    Args:
        name: name of the argument for the error.
        value: anything that NumPy converts to an array.
        shape: expected shape as a tuple of sizes and letters, e.g. `("depth", "d", "d")`. Equal letters must have equal
            sizes. None for any shape.

    Raises:
        ValueError: for complex, non-numeric, non-finite (in float64) or empty values, and for other shapes.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"Argument `{name}` must contain real numbers. Received: dtype {array.dtype}")
    if shape is not None and not _matches(array.shape, shape):
        expected = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
        raise ValueError(f"Argument `{name}` must have shape {expected}. Received: shape {array.shape}")
    array = array.astype(np.float64, copy=False)
    if not np.isfinite(array).all():
        raise ValueError(
            f"Argument `{name}` must be finite. Received: {np.count_nonzero(~np.isfinite(array))} of {array.size} "
            f"entries that are NaN or infinite in float64. Remove them first."
        )
    return array


def _matches(received: tuple[int, ...], expected: tuple[int | str, ...]) -> bool:
    if len(received) != len(expected) or 0 in received:
        return False
    sizes: dict[int | str, int] = {}
    for size, wanted in zip(received, expected, strict=True):
        if sizes.setdefault(wanted, size if isinstance(wanted, str) else wanted) != size:
            return False
    return True


def covariance_matrix(name: str, value: ArrayLike | None, dim: int) -> Floats:
    """Return a symmetric positive semidefinite matrix of shape (dim, dim), or the identity if `value` is None.

    Raises:
        ValueError: if `value` is not symmetric or has a negative eigenvalue beyond rounding.
    """
    if value is None:
        return np.eye(dim)
    matrix = real_array(name, value, (dim, dim))
    size = np.abs(matrix).max()
    if (difference := np.abs(matrix - matrix.T).max()) > 1e-10 * size:
        raise ValueError(
            f"Argument `{name}` must be symmetric. Received: a matrix that differs from its transpose by "
            f"{difference:.3g}. Pass X @ X.T / m for data X of shape (d, m)."
        )
    matrix = (matrix + matrix.T) / 2
    smallest = np.linalg.eigvalsh(matrix)[0]
    if smallest < -1e-10 * size:
        raise ValueError(
            f"Argument `{name}` must be positive semidefinite. Received: a matrix with the eigenvalue {smallest:.3g}. "
            f"Pass X @ X.T / m for data X of shape (d, m)."
        )
    return matrix


def non_negative(name: str, value: object) -> float:
    """Return `value` as a float.

    Raises:
        ValueError: if it is not a finite number of 0 or more.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) < np.inf:
        raise ValueError(f"Argument `{name}` must be a finite number of 0 or more. Received: {name}={value!r}")
    return float(value)
