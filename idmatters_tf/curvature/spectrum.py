"""Li et al.'s figures of a whole spectrum."""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike


@dataclasses.dataclass(frozen=True)
class Summary:
    """Li et al.'s figures of a spectrum.

    Attributes:
        max_abs: the largest |eigenvalue|.
        p10_abs: the 10th percentile of the |eigenvalues|.
        condition: max_abs / p10_abs, their condition number; infinite where p10_abs is zero.
        index: the fraction of negative eigenvalues.
        smallest, largest: with signs.
    """

    max_abs: float
    p10_abs: float
    condition: float
    index: float
    smallest: float
    largest: float


def summarize(eigenvalues: ArrayLike, tolerance: float | None = None) -> Summary:
    """Li et al.'s figures of a whole spectrum.

    Source: Li et al., *Demystifying ResNet*, footnote 1 (the 10th percentile, for the smallest is "very unstable"),
    section 5.2 (index).

    Args:
        eigenvalues: all of them, in any order.
        tolerance: eigenvalues of at most this size are zero, neither negative nor positive; if None, rounding:
            n * eps * max_abs.

    Example:

    >>> summarize([-1.0, 0.5, 2.0, 2.0]).index
    0.25
    """
    values = np.asarray(eigenvalues)
    if values.ndim != 1 or not values.size or np.iscomplexobj(values):
        raise ValueError(
            f"Argument `eigenvalues` must be a non-empty list of real numbers. Received: shape {values.shape}, "
            f"dtype {values.dtype}"
        )
    if not np.isfinite(values).all():
        raise ValueError("Argument `eigenvalues` must be finite. Received: some that are not.")
    sizes = np.abs(values)
    largest = float(sizes.max())
    if tolerance is None:
        tolerance = values.size * float(np.finfo(np.result_type(values, np.float32)).eps) * largest
    percentile = float(np.percentile(sizes, 10))
    return Summary(
        max_abs=largest,
        p10_abs=percentile,
        condition=largest / percentile if percentile > tolerance else float("inf"),
        index=float(np.mean(values < -tolerance)),
        smallest=float(values.min()),
        largest=float(values.max()),
    )
