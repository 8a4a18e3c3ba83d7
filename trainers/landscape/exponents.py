"""Exponents of power laws in the depth: least squares for each seed, confidence intervals, and a verdict."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from trainers.experiments.experiment import Verdict, by_column


@dataclasses.dataclass(frozen=True)
class LawRow:
    """One kind of network at one depth with one start.

    Attributes:
        kind: kind of network and start.
        depth: layers.
        seed: seed of the start, and of a random target.
        rate: measured learning rate.
        slope: mean over the seeds of the exponent in rate ~ depth^slope, the same in all rows of a kind.
        low: lower end of the 95 % interval of the exponent.
        high: upper end of the 95 % interval of the exponent.
        law: exponent derived from theory; None if there is none.
    """

    kind: str
    depth: int
    seed: int
    rate: float
    slope: float
    low: float
    high: float
    law: float | None


def exponent(depths: Sequence[int], values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Compute the slope of the logarithm of a quantity against log depth.

    Args:
        depths: (depths,).
        values: (seeds, depths), positive.

    Returns:
        (mean, low, high): mean over the seeds and Student's 95 % interval, which has no width for a single seed.
    """
    x = np.log(depths) - np.log(depths).mean()
    slopes = np.log(values) @ x / (x @ x)
    mean, seeds = float(slopes.mean()), len(slopes)
    if seeds == 1:
        return mean, mean, mean
    half = float(scipy.stats.t.ppf(0.975, seeds - 1) * slopes.std(ddof=1) / np.sqrt(seeds))
    return mean, mean - half, mean + half


def law_rows(
    kind: str, depths: Sequence[int], seeds: int, rate: Callable[[int, int], float], law: float | None
) -> list[LawRow]:
    """Measure a rate at all depths with all seeds, and fit its exponent.

    Args:
        kind: name of the kind of network.
        depths: layers.
        seeds: number of seeds.
        rate: returns the rate of a depth and a seed.
        law: expected exponent.
    """
    found = {(depth, seed): rate(depth, seed) for depth in depths for seed in range(seeds)}
    fit = exponent(depths, np.array([[found[depth, seed] for depth in depths] for seed in range(seeds)]))
    return [LawRow(kind, depth, seed, value, *fit, law) for (depth, seed), value in found.items()]


def compare_exponents(rows: Sequence[LawRow], quantity: str, tolerance: float) -> Verdict:
    """Check that all exponents agree with the laws within the tolerance."""
    kinds = {kind: chosen[0] for kind, chosen in by_column(rows, "kind").items()}
    numbers = "; ".join(
        f"{kind} {row.slope:.2f} ({row.low:.2f} to {row.high:.2f}"
        + (")" if row.law is None else f", expected {row.law:.2f})")
        for kind, row in kinds.items()
    )
    seen = all(abs(row.slope - row.law) < tolerance for row in kinds.values() if row.law is not None)
    return Verdict(seen, f"exponents of {quantity} in the depth: {numbers}")


def mean_rates(rows: Sequence[LawRow]) -> NDArray[np.float64]:
    """Return the geometric means over the seeds of the rates of one kind, (depths,), in ascending order of depth."""
    by_depth = by_column(rows, "depth")
    return np.array([np.exp(np.mean([np.log(row.rate) for row in by_depth[depth]])) for depth in sorted(by_depth)])
