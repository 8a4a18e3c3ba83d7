"""Figure 3: mean Frobenius norm of the weights of 2-shortcut networks against the training loss."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from trainers.experiments.experiment import Cases, Experiment, Verdict, by_column
from trainers.experiments.panels import add_legend, line, panels
from trainers.shortcuts.settings import NormsSettings
from trainers.shortcuts.training import Problem, Training, best_rate, trainings

# Number of runs with which the learning rate of each depth is chosen, and of epochs between records.
TRIALS, EVERY = 2, 10


@dataclasses.dataclass(frozen=True)
class NormsRow:
    """One record of one run."""

    activation: str  # "linear" or "relu"
    depth: int
    run: int  # number of the start
    rate: float
    epoch: int
    loss: float  # minus the optimum for linear networks
    mean_frobenius: float  # mean of the layers' Frobenius norms


def cases(problem: Problem, settings: NormsSettings) -> Cases:
    """Yield the arguments of `measure` for each activation and each depth that is a multiple of two."""
    for training in trainings(problem, settings):
        for depth in settings.networks.depths:
            if depth % 2 == 0:
                yield training, depth


def measure(training: Training, depth: int) -> Iterator[NormsRow]:
    """Compute norms and losses of 2-shortcut networks along training with the best learning rate."""
    trials = dataclasses.replace(training, starts=min(training.starts, TRIALS))
    rate = best_rate(trials.final_losses(["2-shortcut"], depth)["2-shortcut"], training.rates)
    for record in training.descend("2-shortcut", depth, rate, EVERY):
        means = np.linalg.norm(record.weights, axis=(-2, -1)).reshape(training.starts, -1).mean(axis=1)
        for run, (loss, mean) in enumerate(zip(record.loss, means, strict=True)):
            yield NormsRow(training.activation, depth, run, rate, record.epoch, float(loss), float(mean))


def verdict(rows: Sequence[NormsRow]) -> Verdict:
    """Check that deeper networks have smaller mean norms at the same loss, in the rows of one activation."""
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
        return Verdict(None, "at least two depths are required")
    seen = all(deeper < shallower for shallower, deeper in itertools.pairwise(values))
    numbers = ", ".join(f"{norm:.3f} at depth {depth}" for depth, norm in at_level.items())
    return Verdict(
        seen, f"{rows[0].activation}, mean Frobenius norm at log10 loss {level:.2f} falls with depth: {numbers}"
    )


def draw(rows: Sequence[NormsRow]) -> Figure:
    """Draw a panel for each activation, with a color for each depth."""
    activations = by_column(rows, "activation")
    figure, axes = panels(len(activations))
    for panel, (activation, chosen) in zip(axes, activations.items(), strict=True):
        for number, (depth, by_depth) in enumerate(sorted(by_column(chosen, "depth").items())):
            for run, by_run in by_column(by_depth, "run").items():
                label = None if run else f"depth {depth}"
                line(panel, by_run, "loss", "mean_frobenius", color=f"C{number}", label=label)
        panel.set(title=f"2-shortcuts, {activation}; Figure 3", ylabel="mean Frobenius norm", xscale="log")
        panel.set_xlabel("loss - optimum" if activation == "linear" else "loss")
        # Smaller values are rounding errors.
        panel.set_xlim(left=max(panel.get_xlim()[0], 1e-9))
    add_legend(figure)
    return figure


EXPERIMENT = Experiment("norms", cases, measure, {"norms": draw}, verdict, verdict_by="activation")
