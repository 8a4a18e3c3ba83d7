"""Summary statistics of a spectrum."""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike


@dataclasses.dataclass(frozen=True)
class Summary:
    """Summary statistics of a spectrum, after Li et al.

    Attributes:
        max_abs: largest |eigenvalue|.
        p10_abs: 10th percentile of |eigenvalues|.
        condition: condition number max_abs / p10_abs; infinite if p10_abs is zero.
        index: fraction of negative eigenvalues.
        smallest, largest: smallest and largest eigenvalue.
    """

    max_abs: float
    p10_abs: float
    condition: float
    index: float
    smallest: float
    largest: float


def summarize(eigenvalues: ArrayLike, tolerance: float | None = None) -> Summary:
    """Compute summary statistics of all eigenvalues of a matrix.

    Source: Li et al., *Demystifying ResNet*, footnote 1 (10th percentile, because the smallest eigenvalue is "very
    unstable") and section 5.2 (index).

    Args:
        eigenvalues: all eigenvalues in any order.
        tolerance: eigenvalues up to this magnitude count as zero; n * eps * max_abs if None.

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
        raise ValueError("Argument `eigenvalues` must be finite. Received: infinite or NaN values.")
    eps = float(np.finfo(np.result_type(values, np.float32)).eps)
    # Absolute values of integers can overflow.
    values = values.astype(np.float64)
    sizes = np.abs(values)
    largest = float(sizes.max())
    if tolerance is None:
        tolerance = values.size * eps * largest
    percentile = float(np.percentile(sizes, 10))
    return Summary(
        max_abs=largest,
        p10_abs=percentile,
        condition=largest / percentile if percentile > tolerance else float("inf"),
        index=float(np.mean(values < -tolerance)),
        smallest=float(values.min()),
        largest=float(values.max()),
    )
