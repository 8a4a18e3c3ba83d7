"""Validation and deduplication of points and labels."""

import hashlib
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmatters_tf._arguments import positive_integer

# The points, in the dtype of the user.
Points: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.integer[Any]]

CHUNK_ENTRIES = 2**24
# Largest number of classes of a memorizer. The last block has its square of weights, 8 GiB in float64.
MOST_CLASSES = 2**15


def check_sample(
    x: ArrayLike, labels: ArrayLike, classes: int | None = None, most: int = MOST_CLASSES
) -> tuple[Points, Integers, int]:
    """Check the sample of `memorize` and convert it to arrays, without a copy of numeric arrays.

    Raises:
        ValueError: if an argument is invalid, or if there are more than `most` classes.
    """
    x = np.asarray(x)
    labels = np.asarray(labels)
    if x.ndim != 2 or 0 in x.shape:
        remedy = " Flatten each point: x.reshape(len(x), -1)." if x.ndim > 2 else ""
        raise ValueError(f"Argument `x` must have shape (n, d), not empty. Received: shape {x.shape}.{remedy}")
    if x.dtype.kind not in "fiub":
        raise ValueError(f"Argument `x` must contain real numbers. Received: dtype {x.dtype}")
    infinite = np.flatnonzero(~np.isfinite(x).all(axis=1))
    if len(infinite):
        raise ValueError(f"Argument `x` must be finite. Received: NaN or infinite entries in row {infinite[0]}")
    if labels.shape != x.shape[:1] or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise ValueError(
            f"Argument `labels` must have shape ({len(x)},) and contain class indices, integers of 0 or more. "
            f"Received: shape {labels.shape}, dtype {labels.dtype}"
        )
    largest = int(labels.max())
    classes = largest + 1 if classes is None else positive_integer("classes", classes)
    if classes <= largest:
        raise ValueError(f"Argument `classes` must be above the largest label, {largest}. Received: classes={classes}")
    if classes > most:
        raise ValueError(
            f"Argument `classes` must be at most {most:,}, because the last block has classes^2 weights. Received: "
            f"classes={classes:,}. Renumber labels that have gaps: np.unique(labels, return_inverse=True)[1]."
        )
    return x, labels, classes


def largest_magnitude(x: Points) -> float:
    """Return the largest |x|."""
    return max(float(x.max()), -float(x.min()))


def check_range(x: Points, dtype: str) -> None:
    """Raise ValueError if x, or normally distributed weights divided by x, are outside the range of `dtype`."""
    largest = largest_magnitude(x)
    smallest = 2.0**20 * float(np.finfo(dtype).tiny)
    if largest and not smallest <= largest <= 1 / smallest:
        raise ValueError(
            f"Argument `x` must have a largest magnitude from {smallest:.0e} to {1 / smallest:.0e} for {dtype}. "
            f"Received: {largest:.3g}. Scale x{', or use float64' * (dtype == 'float32')}."
        )


def slices(count: int, size: int) -> list[slice]:
    """Return slices of `size` rows over `count` rows; the last one may be shorter."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def chunks(x: Points) -> list[slice]:
    """Return slices over the rows of x of about 2^24 numbers each, to avoid a full copy in float64."""
    return slices(len(x), max(1, CHUNK_ENTRIES // x.shape[1]))


def distinct_rows(x: Points, labels: Integers) -> NDArray[np.int64]:
    """Return the indices of the rows that differ from all earlier ones, ascending.

    Raises:
        ValueError: if two equal rows have different labels.
    """
    first_rows: dict[bytes, int] = {}
    for row, point in enumerate(x):
        # Adding 0 turns -0.0, which equals 0.0, into the same bytes. Digests need less memory than rows.
        digest = hashlib.sha256((point + 0).tobytes()).digest()
        first = first_rows.setdefault(digest, row)
        if labels[first] != labels[row]:
            raise ValueError(
                f"Arguments `x` and `labels` are contradictory: rows {first} and {row} are equal, but their labels "
                f"are {labels[first]} and {labels[row]}. Remove one of them."
            )
    return np.array(list(first_rows.values()))
