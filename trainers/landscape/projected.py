"""Descent with balanced layers and with a projected end-to-end map (Bartlett, Helmbold & Long, arXiv 1802.06093)."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.experiment import Cases, Experiment, Verdict, by_column, by_columns
from trainers.experiments.panels import line, panel_for_each
from trainers.landscape.settings import Settings
from trainers.landscape.targets import REACHED, Targets, find_first_reached, learning_rate, speed

DIM, DEPTH, GAMMA = 4, 6, 0.1
# Multiples of `learning_rate`; the best one is used for each method.
FACTORS = (1.0, 4.0)
# Layers of the unbalanced start are alternately this multiple of the identity and its reciprocal.
UNBALANCED = 2.0

METHODS: Mapping[str, tuple[float | None, bool]] = {
    "descent": (None, False),
    "balanced": (None, True),
    "balanced and projected": (GAMMA, True),
}
STYLES = {"descent": "tab:blue", "balanced": "tab:orange", "balanced and projected": "tab:green"}


@dataclasses.dataclass(frozen=True)
class ProjectedRow:
    """One step of one method, with the best of the rates tried.

    Attributes:
        target: name of the target.
        positivity: smallest u^T R u of the target.
        start: "identity", "unbalanced" or "reversed".
        method: one of `METHODS`.
        depth: l.
        rate: learning rate.
        reached_at: first step at which the risk is at most 1e-8; None if there is none.
        step: updates so far.
        risk: f - C; None after a divergence.
        projected: largest distance by which the projection moved the map in a step of the run.
    """

    target: str
    positivity: float
    start: str
    method: str
    depth: int
    rate: float
    reached_at: int | None
    step: int
    risk: float | None
    projected: float


def some_targets() -> dict[str, NDArray[np.float64]]:
    """Return targets of dimension 4: two with u^T R u > 0, and one with a rotation by more than 90 degrees."""

    def rotation(degrees: float, size: float) -> NDArray[np.float64]:
        angle = np.deg2rad(degrees)
        return size * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])

    basis = linear.initial_weights("orthogonal", 1, 1, DIM, seed=1)[0, 0]

    def combine(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
        blocks = np.zeros((DIM, DIM))
        blocks[:2, :2], blocks[2:, 2:] = first, second
        return basis @ blocks @ basis.T

    return {
        "rotations by 60 and 80 degrees": combine(rotation(60, 1.5), rotation(80, 0.7)),
        "positive definite": combine(np.diag([1.5, 0.5]), np.diag([0.7, 2.0])),
        "rotation by 150 degrees": combine(rotation(150, 1.0), rotation(20, 1.0)),
    }


# Cases in which the three methods differ, and one in which they do not.
CASES = (
    ("rotations by 60 and 80 degrees", "identity"),
    ("rotations by 60 and 80 degrees", "unbalanced"),
    ("positive definite", "reversed"),
    ("rotation by 150 degrees", "identity"),
)


def starts(depth: int, dim: int) -> dict[str, NDArray[np.float64]]:
    """Return plain networks (layers, d, d): the identity, unbalanced layers, and the last layer with reversed sign.

    Args:
        depth: number of layers, even.
        dim: dimension d.
    """
    identity = linear.initial_weights("identity", depth, 1, dim)[:, 0]
    scales = np.where(np.arange(depth) % 2 == 0, UNBALANCED, 1 / UNBALANCED)
    reversed_last = identity.copy()
    reversed_last[-1] *= -1
    return {"identity": identity, "unbalanced": identity * scales[:, None, None], "reversed": reversed_last}


def cases(targets: Targets, settings: Settings) -> Cases:
    """Yield the arguments of `measure`, the same for all random targets: the runs are designed for the methods."""
    if settings.targets.target or settings.targets.dim == 1:
        return
    for target, start in CASES:
        for method in METHODS:
            yield target, start, method, DEPTH, max(1, settings.networks.steps // 5)


def measure(target: str, start: str, method: str, depth: int, steps: int) -> Iterator[ProjectedRow]:
    """Train by one method with several rates, and keep the best one by `targets.speed`.

    Args:
        target: one of `some_targets`.
        start: one of `starts`.
        method: one of `METHODS`.
        depth: layers, an even number.
        steps: steps of each run.
    """
    R, (gamma, balance) = some_targets()[target], METHODS[method]
    W, rates = starts(depth, len(R))[start], [factor * learning_rate(R, depth) for factor in FACTORS]
    runs = [linear.projected_descent(W, np.eye(len(R)), R, rate, steps, gamma, balance) for rate in rates]
    rate, found = min(zip(rates, runs, strict=True), key=lambda pair: speed(2 * pair[1].excess_risk))
    risks, projected = 2 * found.excess_risk, float(found.projected.max())
    for step, risk in enumerate(risks):
        yield ProjectedRow(
            target=target,
            positivity=linear.positivity(R),
            start=start,
            method=method,
            depth=depth,
            rate=rate,
            reached_at=find_first_reached(risks),
            step=step,
            risk=float(risk) if np.isfinite(risk) else None,
            projected=projected,
        )


def verdict(rows: Sequence[ProjectedRow]) -> Verdict:
    """Check that with the projection all targets with u^T R u > 0 are reached from every tested start."""
    runs = {key: chosen[0] for key, chosen in by_columns(rows, "target", "start", "method").items()}
    full = [
        row for (_, _, method), row in runs.items() if method == "balanced and projected" and row.positivity > GAMMA
    ]
    numbers = "; ".join(
        f"{target}, {start} start, {method}: {'never' if row.reached_at is None else row.reached_at}"
        for (target, start, method), row in runs.items()
        if row.positivity > GAMMA
    )
    return Verdict(
        all(row.reached_at is not None for row in full) if full else None,
        f"steps to a risk of {REACHED:g} for u^T R u > {GAMMA:g}: {numbers}",
    )


def draw(rows: Sequence[ProjectedRow]) -> Figure:
    """Draw the risk against steps, with a panel for each target and start."""
    return panel_for_each(rows, ["target", "start"], _panel, "risk f - C", lowest=1e-12, sharey=False)


def _panel(axes: Axes, rows: Sequence[ProjectedRow]) -> None:
    for number, (method, run) in enumerate(by_column(rows, "method").items()):
        # Decreasing widths keep coinciding curves visible.
        style = {"linewidth": 6 - 2 * number, "alpha": 0.6}
        line(axes, run, "step", "risk", color=STYLES[method], label=method, **style)
    axes.set(title=f"{rows[0].target}, {rows[0].start} start", xlabel="step")


EXPERIMENT = Experiment("projected", cases, measure, {"projected": draw}, verdict)
