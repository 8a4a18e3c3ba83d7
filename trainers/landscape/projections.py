"""Gradient descent between fixed input and output maps, for targets at which the identity start fails."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.panels import line, mark_sizes
from trainers.experiments.program import Numbers, Results, Verdict, group_by

GOAL = 1e-8
# Scale of the maps and fraction of `linear.fixed_maps_rate`. At scale 1, or with the whole rate, some deep networks
# diverge for targets of norm 10.
SCALE, FRACTION = 2.0, 0.5
Maps = Literal["identity", "gaussian"]


@dataclasses.dataclass(frozen=True)
class ProjectionRow:
    """One target, one kind of maps, one depth."""

    target: str
    depth: int
    rate: float
    steps: int | None  # to the goal; None if it is not reached
    factor: float  # bound of the factor of the loss in a step, see `linear.fixed_maps_factor`
    largest_factor: float | None  # largest measured factor until the goal
    tau: float  # largest norm of a layer at the end


def measure(
    targets: dict[str, NDArray[np.float64]], kind: Maps, width: int, depth: int, steps: int
) -> Iterator[ProjectionRow]:
    """Train one network for each target."""
    R = np.array(list(targets.values()))
    k, d = R.shape[1:]
    draw_maps = linear.identity_maps if kind == "identity" else linear.gaussian_maps
    maps = draw_maps(d, k, width, scale=SCALE)
    rates = FRACTION * np.array([linear.fixed_maps_rate(maps, depth, matrix) for matrix in R])
    history = linear.fixed_maps_descent(maps, R, depth, rates, steps, goal=GOAL)
    for number, name in enumerate(targets):
        reached = int(history.steps[number])
        losses = history.losses[: reached + 1 if reached >= 0 else None, number]
        factors = losses[1:] / losses[:-1]
        yield ProjectionRow(
            name,
            depth,
            float(rates[number]),
            reached if reached >= 0 else None,
            linear.fixed_maps_factor(maps, depth, rates[number]),
            float(factors.max()) if factors.size else None,
            float(history.tau[number]),
        )


def verdicts(rows: Sequence[ProjectionRow]) -> Iterator[Verdict]:
    """Compare convergence, the dependence on depth, and the bound of the factor of the loss in a step."""
    reached = [row.steps for row in rows if row.steps is not None]
    numbers: dict[str, float | Numbers] = {"cases": len(rows), "converged": len(reached)}
    numbers["median steps"] = {
        f"depth {depth}": float(np.median([np.inf if row.steps is None else row.steps for row in own]))
        for depth, own in group_by(rows, "depth").items()
    }
    if reached:
        numbers["largest steps"] = max(reached)
    yield Verdict("convergence", len(reached) == len(rows), "every target is reached", numbers)
    slower = [row for row in rows if row.largest_factor is not None and row.largest_factor > row.factor * (1 + 1e-9)]
    claim = "every step multiplies the loss by at most 1 - rate l (σ_min(B) σ_min(C))² / e"
    yield Verdict("factor", not slower, claim, {"cases above": len(slower)})


def draw(rows: Sequence[ProjectionRow]) -> Figure:
    """Draw steps against depth, with a curve for each target."""
    figure = Figure(figsize=(6.0, 3.9), layout="constrained")
    axes = figure.subplots()
    for own in group_by(rows, "target").values():
        line(axes, own, "depth", "steps", color="tab:blue", alpha=0.3)
    mark_sizes(axes, rows, "depth")
    axes.grid(alpha=0.3)
    axes.set(yscale="log", ylabel="steps to a loss of 1e-8")
    return figure


def run(
    results: Results,
    targets: dict[str, NDArray[np.float64]],
    kind: Maps,
    width: int,
    depths: Sequence[int],
    steps: int,
) -> None:
    """Measure all depths, with a part of the targets at a time to bound the memory."""
    names = list(targets)
    parts = [{name: targets[name] for name in names[start : start + 25]} for start in range(0, len(names), 25)]
    cases = [(part, kind, width, depth, steps) for depth in depths for part in parts]
    results.report("projections", measure, cases, {"projections": draw}, verdicts)
