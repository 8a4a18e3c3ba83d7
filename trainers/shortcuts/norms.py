"""Figure 3: mean Frobenius norm of the weights of 2-shortcut networks against the training loss."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trainers.experiments.panels import line, panel_for_each
from trainers.experiments.program import Results, Verdict, group_by
from trainers.shortcuts.settings import Norms
from trainers.shortcuts.training import Regression, ShortcutTraining, trainings

# Number of runs with which the learning rate of each depth is chosen, and of epochs between records.
TRIALS = 2
EVERY = 10


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


def run(problem: Regression, options: Norms, results: Results) -> None:
    """Measure networks with each activation and each depth that is a multiple of two."""
    depths = [depth for depth in options.depths if depth % 2 == 0]
    cases = itertools.product(trainings(problem, options), depths)
    results.report("norms", measure, cases, {"norms": draw}, lambda rows: [verdict(rows)], by="activation")


def measure(training: ShortcutTraining, depth: int) -> Iterator[NormsRow]:
    """Compute norms and losses of 2-shortcut networks along training with the best learning rate."""
    trials = dataclasses.replace(training, starts=min(training.starts, TRIALS))
    rate = trials.find_rate("2-shortcut", depth)
    for epoch, weights, losses, _ in training.descend("2-shortcut", depth, rate, EVERY):
        means = np.linalg.norm(weights, axis=(-2, -1)).reshape(training.starts, -1).mean(axis=1)
        for run, (loss, mean) in enumerate(zip(losses, means, strict=True)):
            yield NormsRow(training.activation, depth, run, rate, epoch, float(loss), float(mean))


def verdict(rows: Sequence[NormsRow]) -> Verdict:
    """Check that deeper networks have smaller mean norms at the same loss, in the rows of one activation."""
    usable = [row for row in rows if np.isfinite(row.loss) and row.loss > 0]
    curves = {
        depth: np.array(sorted((np.log10(row.loss), row.mean_frobenius) for row in chosen)).T
        for depth, chosen in sorted(group_by(usable, "depth").items())
    }
    activation = rows[0].activation
    if len(curves) < 2:
        return Verdict(activation, None, "at least two depths are required")
    # The lowest loss that every depth reaches.
    level = max(log10_losses[0] for log10_losses, _ in curves.values())
    norms = {f"depth {depth}": float(np.interp(level, *curve)) for depth, curve in curves.items()}
    seen = all(deeper < shallower for shallower, deeper in itertools.pairwise(norms.values()))
    claim = f"{activation}, mean Frobenius norm at log10 loss {level:.2f} falls with depth"
    return Verdict(activation, seen, claim, norms)


def draw(rows: Sequence[NormsRow]) -> Figure:
    """Draw a panel for each activation, with a color for each depth."""
    return panel_for_each(rows, "activation", _panel)


def _panel(axes: Axes, rows: Sequence[NormsRow]) -> None:
    activation = rows[0].activation
    depths = sorted({row.depth for row in rows})
    for (depth, run), curve in group_by(rows, "depth", "run").items():
        label = None if run else f"depth {depth}"
        line(axes, curve, "loss", "mean_frobenius", color=f"C{depths.index(depth)}", label=label)
    axes.set(title=f"2-shortcuts, {activation}; Figure 3", ylabel="mean Frobenius norm", xscale="log")
    axes.set_xlabel("loss - optimum" if activation == "linear" else "loss")
    # Smaller values are rounding errors.
    axes.set_xlim(left=max(axes.get_xlim()[0], 1e-9))
