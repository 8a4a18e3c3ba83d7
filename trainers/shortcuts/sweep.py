"""Figures 9 and 10: best learning rate and its final loss against depth."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trainers.experiments.panels import line, mark_sizes, panel_for_each
from trainers.experiments.program import Results, Verdict, group_by
from trainers.shortcuts.settings import Sweep
from trainers.shortcuts.training import COLORS, Regression, ShortcutTraining, best_rate, deviation, trainings


@dataclasses.dataclass(frozen=True)
class SweepRow:
    """One kind of network at one depth with one learning rate."""

    activation: str  # "linear" or "relu"
    kind: str
    depth: int
    rate: float
    best: bool  # True for the best rate of this kind at this depth
    loss: float | None  # mean of the final losses, minus the optimum for linear networks; None if a run diverged
    diverged: int  # number of diverged runs
    runs: int
    deviation: float  # standard deviation of the final losses


def run(problem: Regression, options: Sweep, results: Results) -> None:
    """Measure networks with each activation and depth."""
    cases = itertools.product(trainings(problem, options), options.depths)
    results.report("sweep", measure, cases, {"sweep": draw}, lambda rows: [verdict(rows)], by="activation")


def measure(training: ShortcutTraining, depth: int) -> Iterator[SweepRow]:
    """Compute final losses, averaged over the runs, for every kind of network and learning rate.

    Kinds of network whose units do not divide the depth are skipped, and 3-shortcuts with ReLUs, as in the paper: the
    others have fewer ReLUs.
    """
    kinds = [kind for kind, network in training.networks.items() if depth % network.shortcut_depth == 0]
    if training.activation == "relu" and "3-shortcut" in kinds:
        kinds.remove("3-shortcut")
    for kind, losses in training.final_losses(kinds, depth).items():
        best = best_rate(losses, training.rates)
        for rate, values in zip(training.rates, losses.T, strict=True):
            diverged = int(np.sum(~np.isfinite(values)))
            numbers = None if diverged else float(values.mean()), diverged, training.starts, deviation(values)
            yield SweepRow(training.activation, kind, depth, float(rate), bool(rate == best), *numbers)


def verdict(rows: Sequence[SweepRow]) -> Verdict:
    """Check that 2-shortcuts end lowest of all kinds at the largest depth, in the rows of one activation."""
    activation = rows[0].activation
    depths: dict[int, dict[str, dict[str, float]]] = {}
    for row in rows:
        if row.best and row.loss is not None:
            depths.setdefault(row.depth, {})[row.kind] = {"loss": row.loss, "rate": row.rate}
    depths = {depth: kinds for depth, kinds in depths.items() if "2-shortcut" in kinds and len(kinds) > 1}
    if not depths:
        return Verdict(activation, None, "a depth shared by 2-shortcuts and other kinds is required")
    lower, faster, losses = [], [], []
    for depth, kinds in depths.items():
        ours = kinds["2-shortcut"]
        others = [end for kind, end in kinds.items() if kind != "2-shortcut"]
        losses.append(ours["loss"])
        lower += [depth] * all(ours["loss"] < other["loss"] for other in others)
        faster += [depth] * all(ours["rate"] > other["rate"] for other in others)
    counts = {"of": len(depths), "lowest loss": len(lower), "highest rate": len(faster)}
    numbers = {"2-shortcuts of all depths": {"from": min(losses), "to": max(losses)}, "depths": counts}
    claim = f"{activation}, 2-shortcuts have the lowest mean final loss at depth {max(depths)}"
    return Verdict(activation, max(depths) in lower, claim, depths[max(depths)] | numbers)


def draw(rows: Sequence[SweepRow]) -> Figure:
    """Draw for each activation the loss and the rate, both against depth."""
    return panel_for_each(rows, "activation", _panels, 2)


def _panels(losses: Axes, rates: Axes, rows: Sequence[SweepRow]) -> None:
    activation = rows[0].activation
    best = [row for row in rows if row.best and row.loss is not None]
    for kind, curve in group_by(best, "kind").items():
        for panel, column in ((losses, "loss"), (rates, "rate")):
            line(panel, curve, "depth", column, color=COLORS[kind], marker="o", markersize=4, label=kind)
    losses.set_ylabel("loss - optimum at the best rate" if activation == "linear" else "loss at the best rate")
    rates.set_ylabel("best learning rate")
    for panel in (losses, rates):
        mark_sizes(panel, rows, "depth")
        panel.set(title=f"{activation}; Figure {9 if activation == 'linear' else 10}", yscale="log")
