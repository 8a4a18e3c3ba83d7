"""A target with a negative determinant, as it is and with one more coordinate."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from idmatters_tf import linear
from trainers.experiments.panels import add_legend, by_columns, line
from trainers.experiments.registry import Counter, Experiment, ProgressCallback, Scalars, silent
from trainers.landscape.panels import panels_by_target
from trainers.landscape.settings import Settings
from trainers.landscape.targets import Targets, TargetsByName, learning_rate

ROUGH_START = 0.2
STARTS = 4


@dataclasses.dataclass(frozen=True)
class AugmentationRow:
    """One record of one descent.

    Attributes:
        target: its name.
        problem: "as it is" for R, "augmented" for diag(R, -1).
        start: which of the random starts.
        depth: l.
        step: updates so far.
        risk: f - C.
        tau, inside: |||A|||, and whether it is below 1.
        barrier: sigma_min(R)^2, the squared distance from R to the singular maps.
    """

    target: str
    problem: str
    start: int
    depth: int
    step: int
    risk: float
    tau: float
    inside: bool
    barrier: float


def measure(
    targets: TargetsByName,
    depth: int,
    starts: int,
    steps: int,
    record_every: int,
    progress: ProgressCallback = silent,
) -> list[AugmentationRow]:
    """Gradient descent from small random starts on R with a negative determinant, and on diag(R, -1).

    A path that stays inside the ball keeps the sign of the determinant, so that the risk of R itself stays above
    sigma_min(R)^2, the distance to the singular maps; for diag(R, -1) the optimum lies on the start's side.

    Args:
        targets: by name, (d, d) with negative determinant.
        depth: of the networks.
        starts: how many for each problem.
        steps, record_every: of gradient descent.
        progress: is told of each piece of work done.
    """
    rows, counter = [], Counter(progress, "augmentation", 2 * len(targets))
    for name, R in targets.items():
        barrier = float(np.linalg.svd(R, compute_uv=False)[-1] ** 2)
        for problem, target in (("as it is", R), ("augmented", linear.augment(R))):
            d, rate = len(target), learning_rate(R, depth) / 2
            start = ROUGH_START * linear.initial_weights("xavier", depth, 1, d, seed=1, networks=starts)
            found = linear.gradient_descent(start, np.eye(d), target, rate, steps, record_every=record_every)
            rows += [
                AugmentationRow(
                    target=name,
                    problem=problem,
                    start=number,
                    depth=depth,
                    step=int(step),
                    risk=2 * found.excess_risk[number, k],
                    tau=found.tau[number, k],
                    inside=bool(found.inside[number, k]),
                    barrier=barrier,
                )
                for number in range(starts)
                for k, step in enumerate(found.steps)
            ]
            counter.advance()
    return rows


def draw(rows: Sequence[AugmentationRow]) -> Figure:
    """The risk against steps, a panel for each of the first four targets."""
    figure = panels_by_target(rows, _panel, "risk f - C", most=4, lowest=1e-10)
    add_legend(figure)
    return figure


def _panel(axes: Axes, rows: Sequence[AugmentationRow]) -> None:
    colors = {"as it is": "tab:red", "augmented": "tab:blue"}
    for (problem, start), run in by_columns(rows, "problem", "start").items():
        line(axes, run, "step", "risk", color=colors[problem], alpha=0.7, label=None if start else problem)
    axes.axhline(rows[0].barrier, color="black", linestyle=":", label="distance to the singular maps, squared")
    axes.set_xlabel("step", fontsize=9)


def _scalars(rows: Sequence[AugmentationRow]) -> Iterator[Scalars]:
    for row in rows:
        values = {f"augmentation risk/{row.target}": row.risk, f"augmentation tau/{row.target}": row.tau}
        yield Scalars(f"augmentation, {row.problem}, start {row.start}", row.step, values)


def _run(targets: Targets, settings: Settings, progress: ProgressCallback) -> list[AugmentationRow]:
    networks = settings.networks
    # Far more steps than for a positive determinant: whether any number of them is enough is the question.
    steps, record_every = 6 * networks.steps, 6 * networks.record_every
    return measure(targets.negative, networks.middle_depth, STARTS, steps, record_every, progress)


EXPERIMENT = Experiment("augmentation", AugmentationRow, _run, {"augmentation": draw}, scalars=_scalars)
