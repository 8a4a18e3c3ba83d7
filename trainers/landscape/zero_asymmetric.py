"""Descent from the zero-asymmetric start (Wu, Wang & Ma, arXiv 1911.00645) and from starts near the identity."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.experiment import Cases, Experiment, Scalars, Verdict, by_column
from trainers.experiments.panels import line, panel_for_each
from trainers.landscape.settings import Settings
from trainers.landscape.targets import REACHED, Targets, find_first_reached, learning_rate, speed

# Multiples of `learning_rate`; the best one is used for each start.
FACTORS = (1.0, 2.0, 4.0, 6.0, 8.0)
NEAR_IDENTITY = 0.1
# Number of targets, each with a panel.
MOST_TARGETS = 6
COLORS = {"zero-asymmetric": "tab:blue", "near the identity": "tab:red"}


@dataclasses.dataclass(frozen=True)
class ZeroAsymmetricRow:
    """One record of one descent, with the best of the rates tried.

    Attributes:
        target: name of the target.
        start: one of `COLORS`.
        depth: l.
        rate: learning rate.
        reached_at: first recorded step at which the risk is at most 1e-8; None if there is none.
        step: updates so far.
        risk: f - C.
    """

    target: str
    start: str
    depth: int
    rate: float
    reached_at: int | None
    step: int
    risk: float


def cases(targets: Targets, settings: Settings) -> Cases:
    """Yield the arguments of `measure` for the first targets and each start."""
    networks = settings.networks
    for name, R in itertools.islice(targets.both.items(), MOST_TARGETS):
        for start in COLORS:
            yield name, R, start, networks.middle_depth, 6 * networks.steps, networks.record_every


def measure(
    name: str, R: NDArray[np.float64], start: str, depth: int, steps: int, record_every: int
) -> Iterator[ZeroAsymmetricRow]:
    """Train from one start with several rates, and keep the best one by `targets.speed`.

    Args:
        name: name of the target.
        R: (d, d).
        start: one of `COLORS`.
        depth: layers.
        steps: see `linear.gradient_descent`.
        record_every: see `linear.gradient_descent`.
    """
    d, rates = len(R), learning_rate(R, depth) * np.array(FACTORS)
    if start == "zero-asymmetric":
        W = linear.initial_weights("zero-asymmetric", depth, 1, d, shortcut=True)
    else:
        W = NEAR_IDENTITY * linear.initial_weights("xavier", depth, 1, d, seed=3)
    networks = np.repeat(W[None], len(rates), axis=0)
    found = linear.gradient_descent(networks, np.eye(d), R, rates, steps, record_every=record_every)
    rate, risks = min(zip(rates, 2 * found.excess_risk, strict=True), key=lambda pair: speed(pair[1]))
    reached = find_first_reached(risks)
    for step, risk in zip(found.steps, risks, strict=True):
        yield ZeroAsymmetricRow(
            target=name,
            start=start,
            depth=depth,
            rate=float(rate),
            reached_at=None if reached is None else int(found.steps[reached]),
            step=int(step),
            risk=float(risk),
        )


def verdict(rows: Sequence[ZeroAsymmetricRow]) -> Verdict:
    """Check that every target is reached from the zero-asymmetric start, for both signs of the determinant."""
    reached = {(row.start, row.target): row.reached_at for row in rows}
    steps = {target: count for (start, target), count in reached.items() if start == "zero-asymmetric"}
    stuck = [target for (start, target), count in reached.items() if start != "zero-asymmetric" and count is None]
    numbers = ", ".join(f"{target}: {'never' if count is None else count}" for target, count in steps.items())
    return Verdict(
        None not in steps.values(),
        f"steps to a risk of {REACHED:g} from the zero-asymmetric start: {numbers}. From near the identity "
        f"{len(stuck)} of {len(steps)} targets are not reached",
    )


def draw(rows: Sequence[ZeroAsymmetricRow]) -> Figure:
    """Draw the risk against steps, with a panel for each target."""
    return panel_for_each(rows, ["target"], _panel, "risk f - C", most=MOST_TARGETS, lowest=1e-12)


def _panel(axes: Axes, rows: Sequence[ZeroAsymmetricRow]) -> None:
    for start, run in by_column(rows, "start").items():
        line(axes, run, "step", "risk", color=COLORS[start], label=start)
    axes.axhline(REACHED, color="black", linestyle=":", linewidth=1, label="counts as reached")
    axes.set_xscale("symlog", linthresh=100)
    axes.set_xlim(left=0)
    axes.set_xlabel("step")


def _scalars(row: ZeroAsymmetricRow) -> Scalars:
    return Scalars(f"zero-asymmetric, {row.start}", row.step, {f"zero-asymmetric risk/{row.target}": row.risk})


EXPERIMENT = Experiment("zero_asymmetric", cases, measure, {"zero_asymmetric": draw}, verdict, scalars=_scalars)
