"""Positive targets that are not symmetric: descent from the identity, and the power projection."""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.panels import line, mark_sizes, panel_for_each
from trainers.experiments.program import Results, Verdict

# Loss that counts as reached, and fraction of `linear.identity_start_rate`.
GOAL, FRACTION = 1e-8, 0.5


@dataclasses.dataclass(frozen=True)
class RegularizedRow:
    """One target at one depth."""

    target: str
    depth: int
    margin: float  # smallest u^T R u over unit vectors u
    plain: int | None  # steps of descent from the identity to `GOAL`; None if it is not reached
    projected: int | None  # steps of the power projection
    largest_factor: float  # largest factor of the loss in a step of the power projection, down to `GOAL`
    imbalance: float  # largest difference of a singular value between two layers of it


def turned(name: str, R: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return R plus a random antisymmetric matrix of the same norm, which does not change u^T R u."""
    K = np.random.default_rng(list(name.encode())).normal(size=R.shape)
    K = K - K.T
    return R + K * (np.linalg.norm(R) / np.linalg.norm(K))


def measure(name: str, R: NDArray[np.float64], depth: int, steps: int) -> Iterator[RegularizedRow]:
    """Run both algorithms for one positive definite target, to which an antisymmetric matrix is added."""
    margin = float(np.linalg.eigvalsh(R)[0])
    R = turned(name, R)
    rate = FRACTION * linear.identity_start_rate(R, depth)
    maps = linear.FixedMaps(np.eye(len(R)), np.eye(len(R)))
    plain = linear.fixed_maps_descent(maps, R[None], depth, rate, steps, goal=GOAL).losses[:, 0]
    A, losses = linear.power_projection(R, depth, rate, steps, margin=margin)
    factors = losses[1:] / losses[:-1]
    singular = np.linalg.svd(np.eye(len(R)) + A, compute_uv=False)
    yield RegularizedRow(
        name,
        depth,
        margin,
        _first(plain),
        _first(losses),
        float(factors[losses[:-1] > GOAL].max()),
        float(np.ptp(singular, axis=0).max()),
    )


def _first(losses: NDArray[np.float64]) -> int | None:
    """Return the first step at which the loss is at most the goal, or None."""
    reached = np.flatnonzero(losses <= GOAL)
    return int(reached[0]) if reached.size else None


def verdicts(rows: Sequence[RegularizedRow]) -> Iterator[Verdict]:
    """Check that the loss decreases and layers stay balanced, and compare with descent from the identity."""
    yield Verdict(
        "progress",
        all(row.largest_factor < 1 and row.imbalance < 1e-8 for row in rows),
        "the power projection decreases the loss in each step, and its layers have equal singular values",
        {"cases": len(rows), "largest factor": max(row.largest_factor for row in rows)},
    )
    reached = [row for row in rows if row.projected is not None]
    faster = sum(row.plain is not None and row.plain < (row.projected or math.inf) for row in rows)
    numbers = {"reached by descent": sum(row.plain is not None for row in rows), "reached by projection": len(reached)}
    claim = "descent from the identity without a regularizer needs fewer steps to 1e-8 in most cases"
    yield Verdict("comparison", faster > len(rows) / 2, claim, numbers | {"fewer steps": faster})


def draw(rows: Sequence[RegularizedRow]) -> Figure:
    """Draw the steps against depth, with a panel for each of the first six targets."""
    return panel_for_each(rows, "target", _panel, label="steps to a loss of 1e-8", most=6)


def _panel(axes: Axes, rows: Sequence[RegularizedRow]) -> None:
    line(axes, rows, "depth", "plain", label="descent from the identity")
    line(axes, rows, "depth", "projected", label="power projection", linestyle="--")
    mark_sizes(axes, rows, "depth")


def run(results: Results, targets: dict[str, NDArray[np.float64]], depths: Sequence[int], steps: int) -> None:
    """Measure all targets and depths."""
    cases = [(*item, depth, steps) for item in targets.items() for depth in depths]
    results.report("regularized", measure, cases, {"regularized": draw}, verdicts)
