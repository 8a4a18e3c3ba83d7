"""Assumption 3.1, width and Lemma B.1 of the paper, evaluated on a sample."""

import dataclasses
import math

import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf._arguments import positive_integer
from idmatters_tf.expressivity._samples import Floats, check_sample, distinct_rows, slices
from idmatters_tf.expressivity._surrogates import directions
from idmatters_tf.expressivity.construction import PANEL, highest_products, project


@dataclasses.dataclass(frozen=True)
class AssumptionCheck:
    """Quantities of the paper's proof for a sample with rows divided by their norms.

    Attributes:
        rho: smallest squared distance of two rows (Assumption 3.1).
        width, paper_width: the given k, and the paper's 10 ln(n) / rho^2, rounded up (infinite for rho = 0).
        norm_deviation: largest | ||a||^2 - 1 | over the projected rows, which is the smallest rho' for condition a) of
            Lemma B.1. (The surrogate labels are unit vectors.)
        smallest_distance: smallest distance ||a_i - a_j|| between projected rows, and between them and surrogates.
        printed_excess: 3 rho' - smallest_distance, at rho' = norm_deviation. It is positive if the printed condition b)
            of Lemma B.1 fails. The printed condition is not sufficient.
        excess: 6 rho' - smallest_distance^2. It is positive if the corrected condition fails.
        threshold: 1 - 2 rho', the common threshold of the paper's proof.
        smallest_own, largest_other: smallest ||a_i||^2, and largest <a_i, a_j> that must not fire a unit. A common
            threshold must be between the two.
        surrogate_product: largest inner product of two of the r surrogate labels, below 1/2 in the paper.
    """

    rho: float
    width: int
    paper_width: float
    norm_deviation: float
    smallest_distance: float
    printed_excess: float
    excess: float
    threshold: float
    smallest_own: float
    largest_other: float
    surrogate_product: float

    @property
    def paper_threshold_works(self) -> bool:
        """True if units with threshold 1 - 2 rho' have the property of the lemma."""
        return self.largest_other <= self.threshold < self.smallest_own

    @property
    def some_threshold_works(self) -> bool:
        """True if some common threshold has this property."""
        return self.largest_other < self.smallest_own


def check_assumption(
    x: ArrayLike, labels: ArrayLike | None = None, classes: int | None = None, *, width: int = 32, seed: int = 0
) -> AssumptionCheck:
    """Evaluate the conditions of the paper's proof of Theorem 3.2 on a sample.

    Source: Hardt & Ma, *Identity Matters in Deep Learning*, Assumption 3.1, Lemma B.1, (B.1) and the choice of k in
    appendix B (identical in v1, v2 and v3). (B.1) lacks the factor 1/2 before the squared distance. With this factor
    the lemma requires ||a_i - a_j||^2 >= 6 rho' instead of the printed ||a_i - a_j|| >= 3 rho'.

    Args:
        x: (n, d) nonzero rows, which are divided by their norms as the paper assumes.
        labels: (n,) integers as in `memorize`. Without labels there is one surrogate label.
        classes: r as in `memorize`.
        width: k.
        seed: seed of A_0 and the surrogate labels.

    Returns:
        An `AssumptionCheck`.

    Raises:
        ValueError: if an argument is invalid, a row is zero, or equal rows have different labels.
    """
    labels = np.zeros(np.shape(x)[:1], int) if labels is None else labels
    x, labels, classes = check_sample(x, labels, classes)
    width = positive_integer("width", width)
    x = x[distinct_rows(x, labels)].astype(np.float64)
    largest = np.abs(x).max(axis=1, keepdims=True)
    if not largest.all():
        raise ValueError("Argument `x` must not have rows of zeros. Append a constant column.")
    # Squares of large and small numbers are out of range.
    unit = x / largest
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    rng = np.random.default_rng(seed)
    _, _, Z = project(unit, width, rng)
    surrogates = directions(rng, classes, width)
    own = np.einsum("nk,nk->n", Z, Z)
    deviation = float(np.abs(own - 1).max())
    rho = max(0.0, _smallest_squared_distance(unit, np.empty((0, unit.shape[1]))))
    squared = max(0.0, _smallest_squared_distance(Z, surrogates))
    between = surrogates @ surrogates.T
    np.fill_diagonal(between, -1.0)
    return AssumptionCheck(
        rho=rho,
        width=width,
        paper_width=math.ceil(10 * math.log(len(unit)) / rho**2) if rho > 0 else math.inf,
        norm_deviation=deviation,
        smallest_distance=math.sqrt(squared),
        printed_excess=3 * deviation - math.sqrt(squared),
        excess=6 * deviation - squared,
        threshold=1 - 2 * deviation,
        smallest_own=float(own.min()),
        largest_other=float(_largest_product(Z, surrogates)),
        surrogate_product=float(between.max()),
    )


def _largest_product(Z: Floats, surrogates: Floats) -> float:
    """Return the largest product of two rows of Z, or of a row and a surrogate label."""
    panels = list(slices(len(Z), PANEL))
    later = [highest_products(Z[panel], Z, np.arange(panel.start, panel.stop)).max() for panel in panels]
    return float(max(*later, *((Z[panel] @ surrogates.T).max() for panel in panels)))


def _smallest_squared_distance(Z: Floats, surrogates: Floats) -> float:
    """Return the smallest squared distance of two rows of Z, or of a row and a surrogate label."""
    # The largest <z_i, z_j> - ||z_j||^2 / 2 gives the smallest distance, with one more coordinate in the product.
    squares = np.concatenate([np.einsum("nk,nk->n", A, A) for A in (Z, surrogates)])
    everything = np.column_stack([np.concatenate([Z, surrogates]), -squares / 2])
    smallest = np.inf
    for panel in slices(len(Z), PANEL):
        units = np.column_stack([Z[panel], np.ones(panel.stop - panel.start)])
        highest = highest_products(units, everything, np.arange(panel.start, panel.stop))
        smallest = min(smallest, float((squares[panel] - 2 * highest).min()))
    return smallest
