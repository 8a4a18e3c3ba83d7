"""Largest layer norm and risk of the optimum found with weight decay, against the rate of decay."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.experiment import Cases, Experiment
from trainers.experiments.panels import line, panel_for_each
from trainers.landscape.factorization import compute_factorization_norm
from trainers.landscape.settings import Settings
from trainers.landscape.targets import Targets, learning_rate

DECAYS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


@dataclasses.dataclass(frozen=True)
class RegularizationRow:
    """Result of one descent.

    Attributes:
        target: name of the target.
        depth: l.
        weight_decay: rate of weight decay.
        risk: f - C at the end, without the penalty.
        tau_at_start, tau: |||A||| at the start and at the end.
        polar: |||A||| of `linear.factorize`.
        lower_bound, theorem: bounds of |||A|||, see `linear.FactorizationBounds`.
    """

    target: str
    depth: int
    weight_decay: float
    risk: float
    tau_at_start: float
    tau: float
    polar: float | None
    lower_bound: float
    theorem: float


def cases(targets: Targets, settings: Settings) -> Cases:
    """Yield the arguments of `measure` for each target with a positive determinant."""
    networks = settings.networks
    for name, R in targets.positive.items():
        yield name, R, networks.middle_depth, DECAYS, 8 * networks.steps


def measure(
    name: str, R: NDArray[np.float64], depth: int, decays: Sequence[float], steps: int
) -> Iterator[RegularizationRow]:
    """Train with each rate of weight decay from the same large start.

    Args:
        name: name of the target.
        R: (d, d) with positive determinant.
        depth: layers.
        decays: rates of weight decay.
        steps: steps of gradient descent.
    """
    d = len(R)
    bounds = linear.factorization_bounds(R, depth)
    start = 0.3 * linear.initial_weights("xavier", depth, 1, d, seed=2)
    starts = np.repeat(start[None], len(decays), axis=0)
    # The large start is steeper than the optimum.
    rate = learning_rate(R, depth) / 2
    found = linear.gradient_descent(
        starts, np.eye(d), R, rate, steps, weight_decay=np.asarray(decays, dtype=float), record_every=steps
    )
    for k, decay in enumerate(decays):
        yield RegularizationRow(
            target=name,
            depth=depth,
            weight_decay=float(decay),
            risk=2 * found.excess_risk[k, -1],
            tau_at_start=found.tau[k, 0],
            tau=found.tau[k, -1],
            polar=compute_factorization_norm(R, depth, "polar"),
            lower_bound=bounds.lower,
            theorem=bounds.theorem,
        )


def draw(rows: Sequence[RegularizationRow]) -> Figure:
    """Draw norm and risk against the rate of decay, with a panel for each of the first four targets."""
    return panel_for_each(rows, ["target"], _panel, "norm, risk", most=4, lowest=1e-6, columns_of_legend=5)


def _panel(axes: Axes, rows: Sequence[RegularizationRow]) -> None:
    line(axes, rows, "weight_decay", "tau", color="tab:blue", marker="o", label="|||A||| found")
    line(axes, rows, "weight_decay", "risk", color="tab:red", marker="s", label="risk f - C")
    axes.axhline(rows[0].theorem, color="black", linestyle="--", label="theorem")
    if rows[0].polar is not None:
        # Wide and faint, because the lower bound is nearly the same and would hide it.
        axes.axhline(rows[0].polar, color="tab:green", linewidth=4, alpha=0.4, label="polar")
    axes.axhline(rows[0].lower_bound, color="grey", linestyle="--", label="lower bound")
    smallest = min(row.weight_decay for row in rows if row.weight_decay)
    axes.set_xscale("symlog", linthresh=smallest)
    axes.set_xlim(left=-smallest / 5)
    axes.set_xlabel("weight decay")


EXPERIMENT = Experiment("regularization", cases, measure, {"regularization": draw})
