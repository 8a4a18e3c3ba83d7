"""Numbers of steps guaranteed by convergence theorems for whole runs, compared with measured numbers."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.experiment import Cases, Experiment, Verdict, by_column
from trainers.experiments.panels import add_legend, make_legend_entry, panels
from trainers.landscape.certified import COLORS, compare_steps
from trainers.landscape.settings import Settings
from trainers.landscape.targets import Targets, random_target

# Share of the initial excess risk at which each run ends. The rates of the theorems are too small for longer runs.
GOAL = 0.1
BELOW = 1 - 1e-9
MARKERS = "ovs^DP*"


@dataclasses.dataclass(frozen=True)
class PromiseRow:
    """Guarantee of one theorem for one run.

    Attributes:
        theorem: see `linear.certificates`.
        depth: number of layers.
        dim: dimension of the target.
        condition: condition number of the target.
        rate: largest rate that the theorem allows.
        promised: guaranteed number of steps to a tenth of the excess risk.
        measured: measured number of steps, in multiples of a hundredth of the guaranteed number; None if the run was
            truncated.
    """

    theorem: str
    depth: int
    dim: int
    condition: float
    rate: float
    promised: float
    measured: int | None


def runs() -> Iterator[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """Yield (theorem, W, R) of runs from the identity to positive definite targets, and from other starts.

    The other starts are balanced and zero-asymmetric ones. A start W is a plain network (layers, 1, d, d).
    """
    for condition in (2.0, 10.0):
        factor = random_target(3, condition**0.5, 1, 0)
        R = factor @ factor.T
        for depth in (2, 4, 8, 16):
            yield "positive definite", linear.initial_weights("identity", depth, 1, 3), (R + R.T) / 2
    for margin, depth, dim in ((0.95, 1, 1), (0.8, 1, 1), (0.95, 1, 2), (0.95, 2, 1)):
        R = np.eye(dim)
        yield "balanced", np.eye(dim) + linear.factorize((1 - (1 - margin) / dim**0.5) * R, depth)[:, None], R
    for sign in (1, -1):
        for depth in (3, 9):
            yield (
                "zero-asymmetric",
                linear.initial_weights("zero-asymmetric", depth, 1, 3),
                random_target(3, 2.0, sign, 0),
            )


def cases(targets: Targets, settings: Settings) -> Cases:
    """Yield each of `runs`, the same for all random targets: the runs are designed for the theorems."""
    if not settings.targets.target:
        for run in runs():
            yield *run, 60 * settings.networks.steps


def measure(theorem: str, W: NDArray[np.float64], R: NDArray[np.float64], most_steps: int) -> list[PromiseRow]:
    """Train at the largest rate that a theorem allows until a tenth of the excess risk remains.

    Args:
        theorem: name of the theorem, see `runs`.
        W: start of the run.
        R: target.
        most_steps: largest number of steps.
    """
    moments = np.eye(len(R)), R
    rate = linear.certificates(W, *moments, 0.0, shortcut=False)[theorem].largest_rate * BELOW
    certificate = linear.certificates(W, *moments, rate, shortcut=False)[theorem]
    start = linear.excess_risk(W, *moments, shortcut=False)
    promised = certificate.steps(start, GOAL * start)
    # The steps are counted in hundredths of the largest number.
    most, measured, networks = int(min(promised, most_steps)), None, W[None]
    every = max(1, most // 100)
    for done in range(0, most, every):
        found = linear.gradient_descent(networks, *moments, rate, every, shortcut=False, record_every=every)
        networks = found.weights
        if found.excess_risk[0, -1] <= GOAL * start:
            measured = done + every
            break
    condition = float(np.linalg.cond(R))
    return [PromiseRow(theorem, len(W), len(R), condition, rate, promised, measured)]


def verdict(rows: Sequence[PromiseRow]) -> Verdict:
    """Check that every theorem applies at its rate, and that no run takes longer than guaranteed."""
    kept = all(np.isfinite(row.promised) and row.measured is not None for row in rows)
    late = [row for row in rows if row.measured is not None and row.measured > row.promised]
    ratios = ", ".join(
        f"{theorem} {min(found):.2g} to {max(found):.2g}"
        for theorem, chosen in by_column(rows, "theorem").items()
        if (found := [row.promised / row.measured for row in chosen if row.measured])
    )
    return Verdict(kept and not late, f"guaranteed steps over measured steps: {ratios}")


def draw(rows: Sequence[PromiseRow]) -> Figure:
    """Draw guaranteed against measured steps, with a marker for each depth."""
    figure, (axes,) = panels(1)
    depths = sorted(by_column(rows, "depth"))
    markers = {depth: MARKERS[number % len(MARKERS)] for number, depth in enumerate(depths)}
    shown = []
    for row in rows:
        if row.measured and np.isfinite(row.promised):
            axes.loglog(
                row.measured, row.promised, markers[row.depth], color=COLORS[row.theorem], markersize=8, alpha=0.7
            )
            shown += [row.measured, row.promised]
    compare_steps(axes, shown)
    names = by_column(rows, "theorem")
    handles = [make_legend_entry(theorem, color=COLORS[theorem], marker="o", linestyle="") for theorem in names]
    handles += [make_legend_entry(f"depth {depth}", marker=markers[depth], linestyle="") for depth in depths]
    add_legend(figure, handles, columns=5)
    return figure


EXPERIMENT = Experiment("promises", cases, measure, {"promises": draw}, verdict)
