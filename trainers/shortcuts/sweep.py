"""Figures 9 and 10: best learning rate and its final loss against depth."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from trainers.experiments.experiment import Cases, Experiment, Verdict, by_column
from trainers.experiments.panels import add_legend, line, mark_sizes, panels
from trainers.shortcuts.settings import SweepSettings
from trainers.shortcuts.training import COLORS, Problem, Training, best_rate, deviation, trainings


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


def cases(problem: Problem, settings: SweepSettings) -> Cases:
    """Yield the arguments of `measure` for each activation and depth."""
    for training in trainings(problem, settings):
        for depth in settings.networks.depths:
            yield training, depth


def measure(training: Training, depth: int) -> Iterator[SweepRow]:
    """Compute final losses, averaged over the runs, for every kind of network and learning rate.

    Kinds of network whose units do not divide the depth are skipped.
    """
    kinds = [kind for kind, network in training.networks.items() if depth % network.shortcut_depth == 0]
    for kind, losses in training.final_losses(kinds, depth).items():
        best = best_rate(losses, training.rates)
        for rate, values in zip(training.rates, losses.T, strict=True):
            diverged = int(np.sum(~np.isfinite(values)))
            yield SweepRow(
                activation=training.activation,
                kind=kind,
                depth=depth,
                rate=float(rate),
                best=bool(rate == best),
                loss=None if diverged else float(values.mean()),
                diverged=diverged,
                runs=training.starts,
                deviation=deviation(values),
            )


def verdict(rows: Sequence[SweepRow]) -> Verdict:
    """Check that 2-shortcuts end lowest of all kinds at the largest depth, in the rows of one activation."""
    depths: dict[int, dict[str, tuple[float, float]]] = {}
    for row in rows:
        if row.best and row.loss is not None:
            depths.setdefault(row.depth, {})[row.kind] = row.loss, row.rate
    depths = {depth: ends for depth, ends in sorted(depths.items()) if "2-shortcut" in ends and len(ends) > 1}
    if not depths:
        return Verdict(None, "a depth shared by 2-shortcuts and other kinds is required")
    ours = {depth: ends.pop("2-shortcut") for depth, ends in depths.items()}
    lower = [depth for depth, ends in depths.items() if ours[depth][0] < min(loss for loss, _ in ends.values())]
    faster = [depth for depth, ends in depths.items() if ours[depth][1] > max(rate for _, rate in ends.values())]
    deepest, losses = max(depths), [loss for loss, _ in ours.values()]
    theirs = ", ".join(f"{kind} {loss:.3g} (rate {rate:.2g})" for kind, (loss, rate) in depths[deepest].items())
    return Verdict(
        deepest in lower,
        f"{rows[0].activation}, depth {deepest}, lowest mean final loss: 2-shortcut {ours[deepest][0]:.3g} (rate "
        f"{ours[deepest][1]:.2g}) against {theirs}; 2-shortcuts of all depths {min(losses):.3g} to {max(losses):.3g}, "
        f"lower than all others at {len(lower)} of {len(depths)} depths, with a higher rate at {len(faster)}",
    )


def draw(rows: Sequence[SweepRow]) -> Figure:
    """Draw for each activation the loss and the rate, both against depth."""
    activations = by_column(rows, "activation")
    figure, axes = panels(2 * len(activations))
    for place, (activation, chosen) in enumerate(activations.items()):
        losses, rates = axes[2 * place : 2 * place + 2]
        for kind, by_kind in by_column(chosen, "kind").items():
            best = [row for row in by_kind if row.best and row.loss is not None]
            for panel, column in ((losses, "loss"), (rates, "rate")):
                line(panel, best, "depth", column, color=COLORS[kind], marker="o", markersize=4, label=kind)
        losses.set_ylabel("loss - optimum at the best rate" if activation == "linear" else "loss at the best rate")
        rates.set_ylabel("best learning rate")
        for panel in (losses, rates):
            mark_sizes(panel, chosen, "depth")
            panel.set(title=f"{activation}; Figure {9 if activation == 'linear' else 10}", yscale="log")
    add_legend(figure)
    return figure


EXPERIMENT = Experiment("sweep", cases, measure, {"sweep": draw}, verdict, verdict_by="activation")
