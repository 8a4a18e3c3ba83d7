"""Validation and deduplication of points and labels."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.integer[Any]]

CHUNK_ENTRIES = 2**24


def check_sample(x: ArrayLike, labels: ArrayLike, classes: int | None = None) -> tuple[NDArray[Any], Integers, int]:
    """Check points and labels and convert them to arrays, without a copy of numeric arrays.

    Args:
        x: (n, d) real and finite, of any dtype.
        labels: (n,) integers in [0, classes).
        classes: r. The largest label plus 1 if None.

    Returns:
        (x, labels, classes).

    Raises:
        ValueError: if an argument is invalid.
    """
    try:
        x, labels = np.asarray(x), np.asarray(labels)
    except ValueError as error:
        raise ValueError(f"Arguments `x` and `labels` must be arrays of numbers. Received: {error}") from error
    if x.ndim != 2 or 0 in x.shape:
        remedy = " Flatten each point: x.reshape(len(x), -1)." if x.ndim > 2 else ""
        raise ValueError(f"Argument `x` must have shape (n, d), not empty. Received: shape {x.shape}.{remedy}")
    if x.dtype.kind not in "fiub":
        raise ValueError(f"Argument `x` must contain real numbers. Received: dtype {x.dtype}")
    if labels.shape != x.shape[:1]:
        raise ValueError(
            f"Argument `labels` must have shape ({len(x)},), one for each row of x. Received: shape {labels.shape}"
        )
    if labels.dtype.kind not in "iu":
        raise ValueError(
            f"Argument `labels` must contain integers, class indices from 0 on. Received: dtype {labels.dtype}"
        )
    if labels.min() < 0:
        raise ValueError(f"Argument `labels` must not be negative. Received: {labels.min()}")
    if classes is None:
        classes = int(labels.max()) + 1
    elif isinstance(classes, bool) or not hasattr(classes, "__index__") or classes <= labels.max():
        raise ValueError(
            f"Argument `classes` must be an integer above the largest label, {labels.max()}. "
            f"Received: classes={classes!r}"
        )
    for rows in chunks(x):
        bad = ~np.isfinite(x[rows]).all(axis=1)
        if bad.any():
            row = rows.start + int(np.argmax(bad))
            raise ValueError(f"Argument `x` must be finite. Received: NaN or infinite entries in row {row}")
    return x, labels, int(classes)


def chunks(x: NDArray[Any]) -> list[slice]:
    """Return slices over the rows of x of about 2^24 numbers each, to avoid a full copy in float64."""
    step = max(1, CHUNK_ENTRIES // x.shape[1])
    return [slice(start, min(start + step, len(x))) for start in range(0, len(x), step)]


def distinct_rows(x: NDArray[Any], labels: Integers) -> NDArray[np.int64]:
    """Return the indices of the rows that differ from all earlier ones, ascending.

    Raises:
        ValueError: if two equal rows have different labels.
    """
    first_with: dict[int, list[int]] = {}
    kept: list[int] = []
    for rows in chunks(x):
        # -0.0 and 0.0 are equal but differ in their bytes. Adding 0 maps both to 0.0.
        part = np.ascontiguousarray(x[rows] + 0 if x.dtype.kind == "f" else x[rows])
        for row, point in enumerate(part, rows.start):
            # Different points may share a hash, so each keeps a list.
            candidates = first_with.setdefault(hash(point.tobytes()), [])
            equal = next((other for other in candidates if np.array_equal(x[other], x[row])), None)
            if equal is None:
                candidates.append(row)
                kept.append(row)
            elif labels[equal] != labels[row]:
                raise ValueError(
                    f"Arguments `x` and `labels` are contradictory: rows {equal} and {row} are equal, but their labels "
                    f"are {labels[equal]} and {labels[row]}. Remove one of them."
                )
    return np.array(kept)
