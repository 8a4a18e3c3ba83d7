"""Descent to targets with a negative determinant, unchanged and with one additional coordinate."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.experiment import Cases, Experiment, by_columns
from trainers.experiments.panels import line, panel_for_each
from trainers.landscape.settings import Settings
from trainers.landscape.targets import Targets, learning_rate

ROUGH_START = 0.2
STARTS = 4
COLORS = {"as it is": "tab:red", "augmented": "tab:blue"}


@dataclasses.dataclass(frozen=True)
class AugmentationRow:
    """One record of one descent."""

    target: str
    problem: str  # "as it is" for R, "augmented" for diag(R, -1)
    start: int  # number of the random start
    depth: int
    step: int
    risk: float  # f - C
    tau: float  # |||A|||
    inside: bool  # True if |||A||| < 1
    barrier: float  # sigma_min(R)^2, the squared distance from R to the singular maps


def cases(targets: Targets, settings: Settings) -> Cases:
    """Yield the arguments of `measure` for each target with a negative determinant, unchanged and augmented."""
    networks = settings.networks
    # Many more steps than for a positive determinant, to test if any number of them is sufficient.
    steps, record_every = 6 * networks.steps, 6 * networks.record_every
    for name, R in targets.negative.items():
        for problem in COLORS:
            yield name, R, problem, networks.middle_depth, STARTS, steps, record_every


def measure(
    name: str, R: NDArray[np.float64], problem: str, depth: int, starts: int, steps: int, record_every: int
) -> Iterator[AugmentationRow]:
    """Train from small random starts on R with a negative determinant, or on diag(R, -1).

    A path inside the ball keeps the sign of the determinant, so that the risk of R stays above sigma_min(R)^2, the
    squared distance to the singular maps. For diag(R, -1), the optimum has the sign of the start.
    """
    barrier = float(np.linalg.svd(R, compute_uv=False)[-1] ** 2)
    target = linear.augment(R) if problem == "augmented" else R
    d, rate = len(target), learning_rate(R, depth) / 2
    start = ROUGH_START * linear.initial_weights("xavier", depth, 1, d, seed=1, networks=starts)
    found = linear.gradient_descent(start, np.eye(d), target, rate, steps, record_every=record_every)
    for number in range(starts):
        for k, step in enumerate(found.steps):
            yield AugmentationRow(
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


def draw(rows: Sequence[AugmentationRow]) -> Figure:
    """Draw the risk against steps, with a panel for each of the first four targets."""
    return panel_for_each(rows, "target", _panel, "risk f - C", most=4, lowest=1e-10)


def _panel(axes: Axes, rows: Sequence[AugmentationRow]) -> None:
    for (problem, start), run in by_columns(rows, "problem", "start").items():
        line(axes, run, "step", "risk", color=COLORS[problem], alpha=0.7, label=None if start else problem)
    axes.axhline(rows[0].barrier, color="black", linestyle=":", label="squared distance to the singular maps")
    axes.set_xlabel("step")


EXPERIMENT = Experiment("augmentation", cases, measure, {"augmentation": draw})
