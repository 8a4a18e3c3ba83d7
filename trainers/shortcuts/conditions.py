"""Figure 5: condition numbers of the Hessian at initialization against depth."""

import concurrent.futures
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import joblib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from idmatters_tf.curvature.spectrum import Summary, summarize
from trainers.experiments.experiment import Cases, Experiment, Verdict, by_column
from trainers.experiments.panels import add_legend, mark_sizes, panels
from trainers.shortcuts.settings import ConditionsSettings
from trainers.shortcuts.training import COLORS, LINEAR_NETWORKS, Problem, deviation


@dataclasses.dataclass(frozen=True)
class ConditionsRow:
    """One kind of network at one depth. In names of columns, "lg" is log10, as in the paper's figures."""

    kind: str  # one of `LINEAR_NETWORKS`
    depth: int
    runs: int  # number of starts
    lg_condition: float  # mean of log10 of the condition number
    deviation: float  # standard deviation of log10 of the condition number
    at_limit: int  # number of runs whose condition number is not resolved in float64
    lg_max_abs: float  # mean of log10 of the largest |eigenvalue|
    index: float  # mean fraction of negative eigenvalues


def cases(problem: Problem, settings: ConditionsSettings) -> Cases:
    """Yield the arguments of `measure` for each kind of network and each depth that is a multiple of its units."""
    for kind, network in LINEAR_NETWORKS.items():
        for depth in settings.networks.depths:
            if depth % network.shortcut_depth == 0:
                yield problem.statistics, kind, depth, settings.networks.starts


def summarize_hessians(hessians: Iterable[NDArray[np.float64]]) -> list[Summary]:
    """Return the summary of each Hessian's eigenvalues, without a tolerance for zero.

    NumPy computes eigenvalues without Python's global lock. One matrix per core is faster than one matrix after another
    on all cores, in particular on a busy machine. The BLAS must therefore be limited to one thread, see
    `trainers.shortcuts.__main__`.
    """
    with concurrent.futures.ThreadPoolExecutor(joblib.cpu_count()) as pool:
        spectra = [pool.submit(np.linalg.eigvalsh, hessian) for hessian in hessians]
        return [summarize(spectrum.result(), tolerance=0.0) for spectrum in spectra]


def measure(statistics: linear.Statistics, kind: str, depth: int, starts: int) -> Iterator[ConditionsRow]:
    """Compute the Hessian at the start by the closed form.

    Condition numbers are limited to 1 / (P eps), where P is the number of weights. For larger ones the 10th percentile
    is a rounding error.
    """
    network, (sxx, syx, _) = LINEAR_NETWORKS[kind], statistics
    weights = network.starts(depth, len(sxx), starts)
    summaries = summarize_hessians(linear.shortcut_hessian(W, sxx, syx, shortcut=network.shortcut) for W in weights)
    limit = 1 / (weights[0].size * np.finfo(np.float64).eps)
    log10_condition = np.log10([min(summary.condition, limit) for summary in summaries])
    yield ConditionsRow(
        kind=kind,
        depth=depth,
        runs=starts,
        lg_condition=float(log10_condition.mean()),
        deviation=deviation(log10_condition),
        at_limit=int(np.sum(log10_condition >= np.log10(limit))),
        lg_max_abs=float(np.mean([np.log10(summary.max_abs) for summary in summaries])),
        index=float(np.mean([summary.index for summary in summaries])),
    )


def verdict(rows: Sequence[ConditionsRow]) -> Verdict:
    """Check that condition numbers are constant for 2-shortcuts and grow for Xavier, orthogonal and 1-shortcuts."""
    change = {}
    for kind in LINEAR_NETWORKS:
        curve = sorted((row.depth, row.lg_condition) for row in rows if row.kind == kind)
        if len(curve) > 1:
            change[kind] = curve[-1][1] - curve[0][1], curve[0][0], curve[-1][0]
    if "2-shortcut" not in change or "xavier" not in change:
        return Verdict(None, "at least two even depths are required")
    seen = abs(change["2-shortcut"][0]) < 0.3 and all(
        change[kind][0] > 0.3 for kind in ("xavier", "orthogonal", "1-shortcut") if kind in change
    )
    numbers = "; ".join(
        f"{kind} x {10**log10:.3g} from depth {first} to {last}" for kind, (log10, first, last) in change.items()
    )
    return Verdict(
        seen, f"initial condition numbers, constant for 2-shortcuts, growing for the rest but 3-shortcuts: {numbers}"
    )


def draw(rows: Sequence[ConditionsRow]) -> Figure:
    """Draw the condition number of each kind against depth."""
    figure, (axes,) = panels(1)
    for kind, chosen in by_column(rows, "kind").items():
        depths = [row.depth for row in chosen]
        means, deviations = [row.lg_condition for row in chosen], [row.deviation for row in chosen]
        axes.errorbar(depths, means, deviations, color=COLORS[kind], marker="o", markersize=4, capsize=3, label=kind)
    mark_sizes(axes, rows, "depth")
    axes.set_ylabel("log10 of the condition number at initialization")
    axes.set_title(f"Li et al., Figure 5; mean and deviation of {rows[0].runs} runs")
    add_legend(figure)
    return figure


EXPERIMENT = Experiment("conditions", cases, measure, {"conditions": draw}, verdict)
