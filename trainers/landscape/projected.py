"""Descent with balanced layers and with a projected end-to-end map (Bartlett, Helmbold & Long, arXiv 1802.06093)."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.panels import add_legend, by_columns, line, panels
from trainers.experiments.registry import Counter, Experiment, ProgressCallback, Verdict, silent
from trainers.landscape.settings import Settings
from trainers.landscape.targets import Targets, learning_rate

DIM, DEPTH, GAMMA = 4, 6, 0.1
REACHED = 1e-8
# Of `learning_rate`; the best of them is taken for each method.
FACTORS = (1.0, 4.0)
# Layers of the unbalanced start are this many times the identity, and the reciprocal, in alternation.
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
        target: its name.
        positivity: the smallest u^T R u of the target.
        start: "identity", "unbalanced" or "reversed".
        method: of `METHODS`.
        depth: l.
        rate: the learning rate.
        reached_at: the first step at which the risk is at most 1e-8; None where it never is.
        step: updates so far.
        risk: f - C; None from a divergence on.
        projected: how far the projection moved the map in all the run, the largest step.
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


def some_targets(seed: int = 1) -> dict[str, NDArray[np.float64]]:
    """Targets of dimension 4: two with u^T R u > 0, and one with a rotation by more than 90 degrees.

    Args:
        seed: of the basis.
    """

    def rotation(degrees: float, size: float) -> NDArray[np.float64]:
        angle = np.deg2rad(degrees)
        return size * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])

    basis = linear.initial_weights("orthogonal", 1, 1, DIM, seed=seed)[0, 0]

    def of(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
        blocks = np.zeros((DIM, DIM))
        blocks[:2, :2], blocks[2:, 2:] = first, second
        return basis @ blocks @ basis.T

    return {
        "rotations by 60 and 80 degrees": of(rotation(60, 1.5), rotation(80, 0.7)),
        "positive definite": of(np.diag([1.5, 0.5]), np.diag([0.7, 2.0])),
        "rotation by 150 degrees": of(rotation(150, 1.0), rotation(20, 1.0)),
    }


# Where the three differ, and one where they do not.
CASES = (
    ("rotations by 60 and 80 degrees", "identity"),
    ("rotations by 60 and 80 degrees", "unbalanced"),
    ("positive definite", "reversed"),
    ("rotation by 150 degrees", "identity"),
)


def starts(depth: int, dim: int) -> dict[str, NDArray[np.float64]]:
    """Plain networks (layers, d, d): the identity, in unbalanced layers too, and with the last sign reversed.

    Args:
        depth, dim: of the networks, even.
    """
    identity = linear.initial_weights("identity", depth, 1, dim)[:, 0]
    scales = np.where(np.arange(depth) % 2 == 0, UNBALANCED, 1 / UNBALANCED)
    reversed_last = identity.copy()
    reversed_last[-1] *= -1
    return {"identity": identity, "unbalanced": identity * scales[:, None, None], "reversed": reversed_last}


def measure(
    cases: Sequence[tuple[str, str]], depth: int, steps: int, progress: ProgressCallback = silent
) -> list[ProjectedRow]:
    """Every method in every case.

    Args:
        cases: (target, start), of `some_targets` and `starts`.
        depth: of the networks, even.
        steps: of each run.
        progress: is told of each piece of work done.
    """
    rows, counter = [], Counter(progress, "projected", len(METHODS) * len(cases))
    for target, start in cases:
        R = some_targets()[target]
        W = starts(depth, len(R))[start]
        for method, (gamma, balance) in METHODS.items():
            found = {
                rate: linear.projected_descent(W, np.eye(len(R)), R, rate, steps, gamma, balance)
                for rate in (factor * learning_rate(R, depth) for factor in FACTORS)
            }
            rate = min(found, key=lambda each: _order(found[each].excess_risk))
            risks, projected = 2 * found[rate].excess_risk, float(found[rate].projected.max())
            reached = np.flatnonzero(risks <= REACHED)
            rows += [
                ProjectedRow(
                    target=target,
                    positivity=linear.positivity(R),
                    start=start,
                    method=method,
                    depth=depth,
                    rate=rate,
                    reached_at=int(reached[0]) if reached.size else None,
                    step=step,
                    risk=float(risk) if np.isfinite(risk) else None,
                    projected=projected,
                )
                for step, risk in enumerate(risks)
            ]
            counter.advance()
    return rows


def _order(excess: NDArray[np.float64]) -> tuple[int, float]:
    """Small first, or lowest at the end."""
    reached = np.flatnonzero(2 * excess <= REACHED)
    last = float(excess[-1])
    return (int(reached[0]) if reached.size else len(excess), last if np.isfinite(last) else np.inf)


def verdict(rows: Sequence[ProjectedRow]) -> Verdict:
    """The claim: with the projection all targets with u^T R u > 0 are reached, from every start tried."""
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
    """The risk against steps, a panel for each target and start."""
    runs = by_columns(rows, "target", "start")
    figure, axes = panels(len(runs))
    for each, ((target, start), chosen) in zip(axes, runs.items(), strict=True):
        _panel(each, chosen)
        each.set_title(f"{target}, {start} start", fontsize=8)
    figure.supylabel("risk f - C", fontsize=9)
    add_legend(figure)
    return figure


def _panel(axes: Axes, rows: Sequence[ProjectedRow]) -> None:
    for number, ((method,), run) in enumerate(by_columns(rows, "method").items()):
        # Curves that coincide are seen through one another.
        style = {"linewidth": 6 - 2 * number, "alpha": 0.6}
        line(axes, run, "step", "risk", color=STYLES[method], label=method, **style)
    axes.set_yscale("log")
    axes.set_ylim(bottom=1e-12)
    axes.set_xlabel("step", fontsize=9)


def _run(targets: Targets, settings: Settings, progress: ProgressCallback) -> list[ProjectedRow]:
    if settings.targets.target or settings.targets.dim == 1:
        return []
    return measure(CASES, DEPTH, max(1, settings.networks.steps // 5), progress)


EXPERIMENT = Experiment("projected", ProjectedRow, _run, {"projected": draw}, verdicts=lambda rows: [verdict(rows)])
