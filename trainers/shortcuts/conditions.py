"""Figure 5: condition numbers of the Hessian at initialization against depth."""

import concurrent.futures
import dataclasses
from collections.abc import Iterable, Sequence

import joblib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from idmatters_tf.curvature import Summary, summarize
from trainers.experiments.panels import mark_sizes, panel_for_each
from trainers.experiments.program import Results, Verdict, group_by
from trainers.shortcuts.settings import Conditions
from trainers.shortcuts.training import COLORS, LINEAR_NETWORKS, Regression, deviation


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


def run(problem: Regression, options: Conditions, results: Results) -> None:
    """Measure each kind of network at each depth that is a multiple of its units."""
    cases = [
        (problem.statistics, kind, depth, options.starts)
        for kind, network in LINEAR_NETWORKS.items()
        for depth in options.depths
        if depth % network.shortcut_depth == 0
    ]
    results.report("conditions", measure, cases, {"conditions": draw}, lambda rows: [verdict(rows)])


def summarize_hessians(hessians: Iterable[NDArray[np.float64]]) -> list[Summary]:
    """Return the summary of each Hessian's eigenvalues, without a tolerance for zero.

    NumPy computes eigenvalues without Python's global lock. One matrix per core is faster than one matrix after another
    on all cores, in particular on a busy machine. The BLAS must therefore be limited to one thread.
    """
    with concurrent.futures.ThreadPoolExecutor(joblib.cpu_count()) as pool:
        return [summarize(spectrum, tolerance=0.0) for spectrum in pool.map(np.linalg.eigvalsh, hessians)]


def measure(statistics: linear.Statistics, kind: str, depth: int, starts: int) -> list[ConditionsRow]:
    """Compute the Hessian at the start by the closed form.

    Condition numbers are limited to 1 / (P eps), where P is the number of weights. For larger ones the 10th percentile
    is a rounding error.
    """
    network = LINEAR_NETWORKS[kind]
    sxx, syx, _ = statistics
    weights = network.starts(depth, starts)
    summaries = summarize_hessians(linear.shortcut_hessian(W, sxx, syx, shortcut=network.shortcut) for W in weights)
    limit = 1 / (weights[0].size * np.finfo(np.float64).eps)
    log10_condition = np.log10([min(summary.condition, limit) for summary in summaries])
    mean = float(log10_condition.mean())
    at_limit = int(np.sum(log10_condition >= np.log10(limit)))
    largest = float(np.mean([np.log10(summary.max_abs) for summary in summaries]))
    index = float(np.mean([summary.index for summary in summaries]))
    return [ConditionsRow(kind, depth, starts, mean, deviation(log10_condition), at_limit, largest, index)]


def verdict(rows: Sequence[ConditionsRow]) -> Verdict:
    """Check that condition numbers are constant for 2-shortcuts and grow for Xavier, orthogonal and 1-shortcuts."""
    growth = {}
    for kind, chosen in group_by(rows, "kind").items():
        first, last = (end(chosen, key=lambda row: row.depth) for end in (min, max))
        if first.depth < last.depth:
            growth[kind] = 10 ** (last.lg_condition - first.lg_condition)
    if not {"2-shortcut", "xavier"} <= set(growth):
        return Verdict("growth", None, "at least two even depths are required")
    growing = [growth[kind] for kind in ("xavier", "orthogonal", "1-shortcut") if kind in growth]
    claim = (
        "initial condition numbers are constant for 2-shortcuts and grow for the rest but 3-shortcuts; factors from "
    )
    claim += "the smallest to the largest depth"
    return Verdict("growth", 0.5 < growth["2-shortcut"] < 2 < min(growing), claim, growth)


def draw(rows: Sequence[ConditionsRow]) -> Figure:
    """Draw the condition number of each kind against depth."""
    return panel_for_each(rows, "runs", _panel)


def _panel(axes: Axes, rows: Sequence[ConditionsRow]) -> None:
    for kind, chosen in group_by(rows, "kind").items():
        depths, means, deviations = zip(*((row.depth, row.lg_condition, row.deviation) for row in chosen), strict=True)
        axes.errorbar(depths, means, deviations, color=COLORS[kind], marker="o", markersize=4, capsize=3, label=kind)
    mark_sizes(axes, rows, "depth")
    axes.set_ylabel("log10 of the condition number at initialization")
    axes.set_title(f"Li et al., Figure 5; mean and deviation of {rows[0].runs} runs")
