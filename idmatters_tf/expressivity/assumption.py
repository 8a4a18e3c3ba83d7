"""The paper's Assumption 3.1, its width and its lemma's condition, held against a sample: by how much they fail."""

import dataclasses
import math
from collections.abc import Sized
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf._arguments import positive_integer
from idmatters_tf.expressivity._samples import checked, chunks, distinct_rows
from idmatters_tf.expressivity._surrogates import directions
from idmatters_tf.expressivity.construction import highest_products, project

PANEL = 256


@dataclasses.dataclass(frozen=True)
class AssumptionCheck:
    """The paper's quantities for a sample, after each row has been divided by its norm.

    Attributes:
        rho: the smallest squared distance of two rows (Assumption 3.1).
        width, paper_width: k as asked for, and the paper's 10 ln(n) / rho^2, rounded up; infinite for rho = 0.
        norm_deviation: the largest | ||a||^2 - 1 | over the projected rows: the smallest rho' for condition a) of
            Lemma B.1. (The surrogate labels are unit vectors.)
        smallest_distance: the smallest distance ||a_i - a_j|| over projected rows, and between them and surrogates.
        printed_excess: 3 rho' - smallest_distance, at rho' = norm_deviation: positive where the printed condition b)
            of Lemma B.1 fails. The printed condition does not suffice where it holds.
        excess: 6 rho' - smallest_distance^2: positive where the right condition fails.
        threshold: 1 - 2 rho', the one common threshold of the paper's proof.
        smallest_own, largest_other: the smallest ||a_i||^2, and the largest <a_i, a_j> that must not fire a unit. A
            common threshold, whichever, has to lie between the two.
        surrogate_product: the largest inner product of two of the r surrogate labels; the paper wants it below 1/2.
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
    def lemma_holds_as_printed(self) -> bool:
        """Whether Lemma B.1's conditions hold as they are printed."""
        return self.printed_excess <= 0

    @property
    def lemma_holds(self) -> bool:
        """Whether they hold as they should read."""
        return self.excess <= 0

    @property
    def paper_threshold_works(self) -> bool:
        """Whether the units with threshold 1 - 2 rho' do what the lemma says."""
        return self.largest_other <= self.threshold < self.smallest_own

    @property
    def some_threshold_works(self) -> bool:
        """Whether any common threshold does: what `memorize(order="paper")` needs."""
        return self.largest_other < self.smallest_own


def check_assumption(
    x: ArrayLike, labels: ArrayLike | None = None, classes: int | None = None, width: int = 32, seed: int = 0
) -> AssumptionCheck:
    """What the paper's proof of Theorem 3.2 asks of a sample, and by how much it fails.

    Source: Hardt & Ma, *Identity Matters in Deep Learning*, Assumption 3.1, Lemma B.1, (B.1) and the choice of k in
    appendix B (the same in v1, v2 and v3). (B.1) lacks the factor 1/2 before the squared distance; with it the lemma
    needs ||a_i - a_j||^2 >= 6 rho', where 3 rho' >= ||a_i - a_j|| is printed, without the square.

    Args:
        x: (n, d) rows, none of them zero; they are divided by their norms, as the paper assumes.
        labels, classes: as in `memorize`; without labels one surrogate label is counted.
        width: k.
        seed: of A_0 and of the surrogate labels, the same as `memorize(order="paper")` draws for it.

    Returns:
        An `AssumptionCheck`.

    Raises:
        ValueError: for bad arguments, zero rows, and equal rows with different labels.
    """
    labels = np.zeros(len(cast(Sized, x)), int) if labels is None else labels
    x, labels, classes = checked(x, labels, classes)
    width = positive_integer("width", width)
    unit = np.empty(x.shape)
    for rows in chunks(x):
        norms = np.linalg.norm(x[rows].astype(np.float64, copy=False), axis=1, keepdims=True)
        if not norms.all():
            row = rows.start + int(np.argmin(norms))
            raise ValueError(
                f"Argument `x` must not have zero rows, which have no direction. Received: zeros in row {row}. Append "
                f"a constant column."
            )
        unit[rows] = x[rows] / norms
    kept = distinct_rows(x, labels)
    unit = unit[kept]
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
        largest_other=_largest_product(Z, surrogates),
        surrogate_product=float(between.max()),
    )


def _panels(Z):
    for first in range(0, len(Z), PANEL):
        yield slice(first, min(first + PANEL, len(Z)))


def _largest_product(Z, surrogates):
    largest = -np.inf
    for panel in _panels(Z):
        products = highest_products(Z[panel], Z, np.arange(panel.start, panel.stop))
        largest = max(largest, products.max(), (Z[panel] @ surrogates.T).max())
    return float(largest)


def _smallest_squared_distance(Z, surrogates):
    """Over pairs of rows of Z, and of a row and a surrogate label."""
    # <z_i, z_j> - ||z_j||^2 / 2 is largest where the distance is smallest: one more coordinate in the same product.
    squares = np.concatenate([np.einsum("nk,nk->n", A, A) for A in (Z, surrogates)])
    everything = np.column_stack([np.concatenate([Z, surrogates]), -squares / 2])
    smallest = np.inf
    for panel in _panels(Z):
        units = np.column_stack([Z[panel], np.ones(panel.stop - panel.start)])
        highest = highest_products(units, everything, np.arange(panel.start, panel.stop))
        smallest = min(smallest, float((squares[panel] - 2 * highest).min()))
    return smallest
