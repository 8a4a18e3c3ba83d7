"""Checks of the arguments of this package: real, finite, of the right shape; and the names of their types."""

import numbers
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmatters_tf.arguments import positive_integer as positive_integer

# What the functions of this package return, and what their arguments are turned into.
Floats: TypeAlias = NDArray[np.float64]
Booleans: TypeAlias = NDArray[np.bool_]
Integers: TypeAlias = NDArray[np.int64]


def real_array(name: str, value: ArrayLike, shape: tuple[int | str, ...]) -> Floats:
    """`value` as a float64 array, checked; not a copy where it already is one.

    Args:
        name: of the argument, for the error.
        value: anything that NumPy turns into an array.
        shape: what is expected, a tuple of sizes and letters; equal letters must have equal sizes, e.g.
            `("depth", "d", "d")`.

    Raises:
        ValueError: for complex, non-numeric, non-finite or empty values and for other shapes.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"Argument `{name}` must be an array of real numbers. Received: {error}") from error
    if np.iscomplexobj(array):
        raise ValueError(
            f"Argument `{name}` must be real. Received: dtype {array.dtype}. Pass the real part if the imaginary part "
            f"is zero; the theory here is about real networks."
        )
    if array.dtype.kind not in "fiub":
        raise ValueError(f"Argument `{name}` must hold real numbers. Received: dtype {array.dtype}")
    if not _matches(array.shape, shape):
        expected = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
        square = shape[-2:] == ("d", "d") and array.ndim == len(shape) and array.shape[-1] != array.shape[-2]
        remedy = " Residual layers keep the dimension: pad with zeros to make it square." if square else ""
        raise ValueError(f"Argument `{name}` must have shape {expected}. Received: shape {array.shape}.{remedy}")
    if not np.isfinite(array).all():
        raise ValueError(
            f"Argument `{name}` must be finite. Received: {np.count_nonzero(~np.isfinite(array))} of {array.size} "
            f"entries that are NaN or infinite. Remove them before."
        )
    return array.astype(np.float64, copy=False)


def _matches(received: tuple[int, ...], expected: tuple[int | str, ...]) -> bool:
    if len(received) != len(expected) or 0 in received:
        return False
    sizes: dict[int | str, int] = {}
    for size, wanted in zip(received, expected, strict=True):
        if sizes.setdefault(wanted, size if isinstance(wanted, str) else wanted) != size:
            return False
    return True


def covariance_matrix(name: str, value: ArrayLike | None, dim: int) -> Floats:
    """A symmetric positive semidefinite matrix of shape (dim, dim); the identity if `value` is None.

    Raises:
        ValueError: where it is not symmetric or has a negative eigenvalue, beyond rounding.
    """
    if value is None:
        return np.eye(dim)
    matrix = real_array(name, value, (dim, dim))
    size = np.abs(matrix).max()
    if np.abs(matrix - matrix.T).max() > 1e-10 * size:
        raise ValueError(
            f"Argument `{name}` must be symmetric. Received: a matrix that differs from its transpose by "
            f"{np.abs(matrix - matrix.T).max():.3g}. Pass X @ X.T / m for data X of shape (d, m)."
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
    """`value` as a float.

    Raises:
        ValueError: where it is not a finite number of 0 or more.
    """
    number = np.nan if isinstance(value, bool) or not isinstance(value, numbers.Real) else float(value)
    if not 0 <= number < np.inf:
        raise ValueError(f"Argument `{name}` must be a finite number of 0 or more. Received: {name}={value!r}")
    return number
