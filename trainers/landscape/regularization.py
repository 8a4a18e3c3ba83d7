"""Which optimum weight decay finds: its largest layer norm and its risk against the rate of decay."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from idmatters_tf import linear
from trainers.experiments.panels import add_legend, line
from trainers.experiments.registry import Counter, Experiment, ProgressCallback, silent
from trainers.landscape.factorization import norm_of_factorization
from trainers.landscape.panels import panels_by_target
from trainers.landscape.settings import Settings
from trainers.landscape.targets import Targets, TargetsByName, learning_rate

DECAYS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


@dataclasses.dataclass(frozen=True)
class RegularizationRow:
    """The end of one descent.

    Attributes:
        target: its name.
        depth: l.
        weight_decay: its rate.
        risk: f - C at the end, without the penalty.
        tau_at_start, tau: |||A||| at both ends.
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


def measure(
    targets: TargetsByName,
    depth: int,
    decays: Sequence[float],
    steps: int,
    progress: ProgressCallback = silent,
) -> list[RegularizationRow]:
    """Descends with each rate of weight decay from the same start, which is not small.

    Args:
        targets: by name, (d, d) with positive determinant.
        depth: of the networks.
        decays: rates of weight decay.
        steps: of gradient descent.
        progress: is told of each piece of work done.
    """
    rows, counter = [], Counter(progress, "regularization", len(targets))
    for name, R in targets.items():
        d = len(R)
        bounds = linear.factorization_bounds(R, depth)
        start = 0.3 * linear.initial_weights("xavier", depth, 1, d, seed=2)
        starts = np.repeat(start[None], len(decays), axis=0)
        # The large start is steeper than the optimum.
        rate = learning_rate(R, depth) / 2
        found = linear.gradient_descent(
            starts, np.eye(d), R, rate, steps, weight_decay=np.asarray(decays, dtype=float), record_every=steps
        )
        rows += [
            RegularizationRow(
                target=name,
                depth=depth,
                weight_decay=float(decay),
                risk=2 * found.excess_risk[k, -1],
                tau_at_start=found.tau[k, 0],
                tau=found.tau[k, -1],
                polar=norm_of_factorization(R, depth, "polar"),
                lower_bound=bounds.lower,
                theorem=bounds.theorem,
            )
            for k, decay in enumerate(decays)
        ]
        counter.advance()
    return rows


def draw(rows: Sequence[RegularizationRow]) -> Figure:
    """Norm and risk against the rate of decay, a panel for each of the first four targets."""
    figure = panels_by_target(rows, _panel, "norm, risk", most=4, lowest=1e-6)
    add_legend(figure, columns=5)
    return figure


def _panel(axes: Axes, rows: Sequence[RegularizationRow]) -> None:
    line(axes, rows, "weight_decay", "tau", color="tab:blue", marker="o", label="|||A||| found")
    line(axes, rows, "weight_decay", "risk", color="tab:red", marker="s", label="risk f - C")
    axes.axhline(rows[0].theorem, color="black", linestyle="--", label="theorem")
    if rows[0].polar is not None:
        # The lower bound is nearly the same, and would hide it.
        axes.axhline(rows[0].polar, color="tab:green", linewidth=4, alpha=0.4, label="polar")
    axes.axhline(rows[0].lower_bound, color="grey", linestyle="--", label="lower bound")
    smallest = min(row.weight_decay for row in rows if row.weight_decay)
    axes.set_xscale("symlog", linthresh=smallest)
    axes.set_xlim(left=-smallest / 5)
    axes.set_xlabel("weight decay", fontsize=9)


def _run(targets: Targets, settings: Settings, progress: ProgressCallback) -> list[RegularizationRow]:
    networks = settings.networks
    return measure(targets.positive, networks.middle_depth, DECAYS, 8 * networks.steps, progress)


EXPERIMENT = Experiment("regularization", RegularizationRow, _run, {"regularization": draw})
