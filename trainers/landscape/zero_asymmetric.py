"""The zero-asymmetric start (Wu, Wang & Ma, arXiv 1911.00645) and starts near the identity, for either determinant."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from idmatters_tf import linear
from trainers.experiments.panels import add_legend, by_column, by_columns, line
from trainers.experiments.registry import Counter, Experiment, ProgressCallback, Scalars, Verdict, silent
from trainers.landscape.panels import panels_by_target
from trainers.landscape.settings import Settings
from trainers.landscape.targets import Targets, TargetsByName, learning_rate

REACHED = 1e-8
# Of `learning_rate`; the best of them is taken for each start.
FACTORS = (1.0, 2.0, 4.0, 6.0, 8.0)
NEAR_IDENTITY = 0.1
# One panel each.
MOST_TARGETS = 6


@dataclasses.dataclass(frozen=True)
class ZeroAsymmetricRow:
    """One record of one descent, with the best of the rates tried.

    Attributes:
        target: its name.
        start: "zero-asymmetric" or "near the identity".
        depth: l.
        rate: the learning rate.
        reached_at: the first recorded step at which the risk is at most 1e-8; None where it never is.
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


def measure(
    targets: TargetsByName,
    depth: int,
    steps: int,
    record_every: int,
    progress: ProgressCallback = silent,
) -> list[ZeroAsymmetricRow]:
    """Gradient descent from both starts with several rates.

    The rate with which the risk is 1e-8 first is the best one, or that with the lowest risk at the end where none gets
    there.

    Args:
        targets: by name, (d, d).
        depth: of the networks.
        steps, record_every: of gradient descent.
        progress: is told of each piece of work done.
    """
    rows, counter = [], Counter(progress, "zero-asymmetric", 2 * len(targets))
    for name, R in targets.items():
        d, rates = len(R), learning_rate(R, depth) * np.array(FACTORS)
        starts = {
            "zero-asymmetric": linear.initial_weights("zero-asymmetric", depth, 1, d, shortcut=True),
            "near the identity": NEAR_IDENTITY * linear.initial_weights("xavier", depth, 1, d, seed=3),
        }
        for start, W in starts.items():
            networks = np.repeat(W[None], len(rates), axis=0)
            found = linear.gradient_descent(networks, np.eye(d), R, rates, steps, record_every=record_every)
            risks = 2 * found.excess_risk
            best = _best(risks)
            reached = np.flatnonzero(risks[best] <= REACHED)
            rows += [
                ZeroAsymmetricRow(
                    target=name,
                    start=start,
                    depth=depth,
                    rate=float(rates[best]),
                    reached_at=int(found.steps[reached[0]]) if reached.size else None,
                    step=int(step),
                    risk=float(risk),
                )
                for step, risk in zip(found.steps, risks[best], strict=True)
            ]
            counter.advance()
    return rows


def _best(risks: np.ndarray) -> int:
    """The row that is small first, or that ends lowest."""
    reached = [np.flatnonzero(row <= REACHED) for row in risks]
    first = [(int(found[0]) if found.size else risks.shape[1]) for found in reached]
    last = np.where(np.isfinite(risks[:, -1]), risks[:, -1], np.inf)
    return min(range(len(risks)), key=lambda row: (first[row], last[row]))


def verdict(rows: Sequence[ZeroAsymmetricRow]) -> Verdict:
    """The claim: from the zero-asymmetric start every target is reached, whatever the sign of its determinant."""
    steps = {
        target: chosen[0].reached_at
        for target, chosen in by_column([row for row in rows if row.start == "zero-asymmetric"], "target").items()
    }
    stuck = [
        target
        for target, chosen in by_column([row for row in rows if row.start != "zero-asymmetric"], "target").items()
        if chosen[0].reached_at is None
    ]
    numbers = ", ".join(f"{target}: {'never' if count is None else count}" for target, count in steps.items())
    return Verdict(
        None not in steps.values(),
        f"steps to a risk of {REACHED:g} from the zero-asymmetric start: {numbers}. From near the identity "
        f"{len(stuck)} of {len(steps)} targets are not reached",
    )


def draw(rows: Sequence[ZeroAsymmetricRow]) -> Figure:
    """The risk against steps, a panel for each of the first six targets."""
    figure = panels_by_target(rows, _panel, "risk f - C", most=MOST_TARGETS, lowest=1e-12)
    add_legend(figure)
    return figure


def _panel(axes: Axes, rows: Sequence[ZeroAsymmetricRow]) -> None:
    colors = {"zero-asymmetric": "tab:blue", "near the identity": "tab:red"}
    for (start,), run in by_columns(rows, "start").items():
        line(axes, run, "step", "risk", color=colors[start], label=start)
    axes.axhline(REACHED, color="black", linestyle=":", linewidth=1, label="counts as reached")
    axes.set_xscale("symlog", linthresh=100)
    axes.set_xlim(left=0)
    axes.set_xlabel("step", fontsize=9)


def _scalars(rows: Sequence[ZeroAsymmetricRow]) -> Iterator[Scalars]:
    for row in rows:
        yield Scalars(f"zero-asymmetric, {row.start}", row.step, {f"zero-asymmetric risk/{row.target}": row.risk})


def _run(targets: Targets, settings: Settings, progress: ProgressCallback) -> list[ZeroAsymmetricRow]:
    networks = settings.networks
    first = dict(itertools.islice(targets.both.items(), MOST_TARGETS))
    return measure(first, networks.middle_depth, 6 * networks.steps, networks.record_every, progress)


EXPERIMENT = Experiment(
    "zero_asymmetric",
    ZeroAsymmetricRow,
    _run,
    {"zero_asymmetric": draw},
    verdicts=lambda rows: [verdict(rows)],
    scalars=_scalars,
)
