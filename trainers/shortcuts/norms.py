"""Figure 3: the mean Frobenius norm of the weights of 2-shortcut networks against the loss in training."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from trainers.experiments.panels import add_legend, by_column, panels
from trainers.experiments.registry import Counter, Experiment, ProgressCallback, Verdict, silent
from trainers.shortcuts.data import Problem
from trainers.shortcuts.networks import descend, networks_with
from trainers.shortcuts.rates import best_rate, chosen_rates, final_losses
from trainers.shortcuts.settings import NormsSettings

# Runs with which the rate of each depth is chosen.
TRIALS = 2


@dataclasses.dataclass(frozen=True)
class NormsRow:
    """One record of one run.

    Attributes:
        activation: "linear" or "relu".
        depth: in layers.
        run: which of the starts.
        rate: the learning rate.
        epoch: updates so far.
        loss: less the optimum for linear networks.
        mean_frobenius: the mean of the layers' Frobenius norms.
    """

    activation: str
    depth: int
    run: int
    rate: float
    epoch: int
    loss: float
    mean_frobenius: float


def measure(
    problem: Problem,
    activation: str,
    depths: Sequence[int],
    rates: NDArray[np.float64],
    starts: int,
    epochs: int,
    every: int,
    seed: int,
    progress: ProgressCallback = silent,
) -> list[NormsRow]:
    """Norms and losses of 2-shortcut networks, each depth with its best learning rate.

    Args:
        problem, activation, rates, starts, epochs, seed: see `final_losses`.
        depths: in layers, even.
        every: epochs between records.
        progress: is told of each piece of work done.
    """
    network = networks_with(activation)["2-shortcut"]
    rows, counter = [], Counter(progress, f"norms, {activation}", 2 * len(depths))
    for depth in depths:
        trials = min(starts, TRIALS)
        losses = final_losses(problem, ["2-shortcut"], depth, activation, rates, trials, epochs, seed)
        rate = best_rate(losses["2-shortcut"], rates)
        counter.advance()
        for record in descend(problem, network, activation, depth, rate, starts, epochs, every, seed):
            means = np.linalg.norm(record.weights, axis=(-2, -1)).reshape(starts, -1).mean(axis=1)
            rows += [
                NormsRow(activation, depth, run, rate, record.epoch, float(record.loss[run]), float(means[run]))
                for run in range(starts)
            ]
        counter.advance()
    return rows


def verdict(rows: Sequence[NormsRow]) -> Verdict:
    """The claim: the deeper the network, the smaller its mean norm, at the same loss.

    Args:
        rows: of one activation.
    """
    curves: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        if np.isfinite(row.loss) and row.loss > 0:
            curves.setdefault(row.depth, []).append((float(np.log10(row.loss)), row.mean_frobenius))
    # The lowest loss that every depth reaches.
    level = max(min(log10_loss for log10_loss, _ in curve) for curve in curves.values())
    at_level = {}
    for depth, curve in sorted(curves.items()):
        log10_losses, norms = np.array(sorted(curve)).T
        at_level[depth] = float(np.interp(level, log10_losses, norms))
    values = list(at_level.values())
    if len(values) < 2:
        return Verdict(None, "needs two depths at least")
    seen = all(deeper < shallower for shallower, deeper in itertools.pairwise(values))
    numbers = ", ".join(f"{norm:.3f} at depth {depth}" for depth, norm in at_level.items())
    return Verdict(
        seen, f"{rows[0].activation}, mean Frobenius norm at log10 loss {level:.2f} falls with depth: {numbers}"
    )


def draw(rows: Sequence[NormsRow]) -> Figure:
    """A panel for each activation, a color for each depth."""
    activations = by_column(rows, "activation")
    figure, axes = panels(len(activations))
    for each, (activation, chosen) in zip(axes, activations.items(), strict=True):
        for number, (depth, of_depth) in enumerate(sorted(by_column(chosen, "depth").items())):
            for run, of_run in by_column(of_depth, "run").items():
                points = [(row.loss, row.mean_frobenius) for row in of_run if row.loss > 0]
                losses, norms = zip(*points, strict=True)
                label, marker = None if run else f"depth {depth}", "o" if len(points) == 1 else None
                each.semilogx(losses, norms, color=f"C{number}", marker=marker, label=label)
        # What is below is rounding.
        each.set_xlim(left=max(each.get_xlim()[0], 1e-9))
        each.set_xlabel("loss - optimum" if activation == "linear" else "loss")
        each.set_ylabel("mean Frobenius norm")
        each.set_title(f"2-shortcuts, {activation}; Figure 3", fontsize=10)
    add_legend(figure, columns=5)
    return figure


def _run(problem: Problem, settings: NormsSettings, progress: ProgressCallback) -> list[NormsRow]:
    networks, descent = settings.networks, settings.descent
    rows = []
    for activation in descent.activations:
        rows += measure(
            problem if activation == "linear" else problem.first(descent.samples),
            activation,
            networks.depths,
            chosen_rates(descent.rates),
            networks.starts,
            descent.epochs,
            settings.norms.every,
            settings.run.seed,
            progress,
        )
    return rows


EXPERIMENT = Experiment(
    "norms",
    NormsRow,
    _run,
    {"norms": draw},
    verdicts=lambda rows: [verdict(chosen) for chosen in by_column(rows, "activation").values()],
)
