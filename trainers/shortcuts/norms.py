"""Figures 2 and 3: mean Frobenius norm of the weights against the training loss.

Figure 3 is an experiment with 2-shortcut networks, Figure 2 is drawn from the logs of `trainers.cifar`.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from trainers.cli.arguments import UsageError
from trainers.experiments.experiment import Cases, Experiment, Verdict, by_column
from trainers.experiments.panels import add_legend, line, panels
from trainers.run.folder import Run
from trainers.shortcuts.settings import NormsSettings
from trainers.shortcuts.training import Problem, Training, best_rate, trainings

# Number of runs with which the learning rate of each depth is chosen.
TRIALS = 2
# Number of epochs between records.
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
    for each, (activation, chosen) in zip(axes, activations.items(), strict=True):
        for number, (depth, by_depth) in enumerate(sorted(by_column(chosen, "depth").items())):
            for run, by_run in by_column(by_depth, "run").items():
                label = None if run else f"depth {depth}"
                line(each, by_run, "loss", "mean_frobenius", color=f"C{number}", label=label)
        each.set_xscale("log")
        # Smaller values are rounding errors.
        each.set_xlim(left=max(each.get_xlim()[0], 1e-9))
        each.set_xlabel("loss - optimum" if activation == "linear" else "loss")
        each.set_ylabel("mean Frobenius norm")
        each.set_title(f"2-shortcuts, {activation}; Figure 3")
    add_legend(figure)
    return figure


EXPERIMENT = Experiment("norms", cases, measure, {"norms": draw}, verdict, verdict_by="activation")


@dataclasses.dataclass(frozen=True)
class Runs:
    """Folders of runs of `trainers.cifar` or `trainers.imagenet`."""

    folders: Sequence[str]

    @property
    def origin(self) -> str:
        """Description of the source."""
        return f"runs {', '.join(self.folders)}"

    @property
    def digest(self) -> str:
        """Checksum of settings and records."""
        runs = map(Run, self.folders)
        return hashlib.sha256(repr([(run.config(), run.metrics()) for run in runs]).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class TrainingNormsRow:
    """One evaluation of one run."""

    run: str  # folder of the run
    network: str  # label that distinguishes the run from the others
    step: int
    loss: float  # training loss of the previous record
    mean_frobenius: float  # mean of the Frobenius norms of the blocks' kernels


def run_cases(runs: Runs, settings: Any) -> Cases:
    """Yield (folder, label) for each run."""
    labels: set[str] = set()
    for folder in runs.folders:
        label = _network(Run(folder).config()["settings"])
        yield folder, f"{label}, {folder}" if label in labels else label
        labels.add(label)


def read_norms(folder: str, label: str) -> list[TrainingNormsRow]:
    """Read the norms of a run from its log."""
    loss, rows = None, []
    for record in Run(folder).metrics():
        if record["kind"] == "train":
            loss = record["loss"]
        elif record.get("norms") and loss is not None:
            rows.append(TrainingNormsRow(str(folder), label, record["step"], loss, record["norms"]["mean_frobenius"]))
    if not rows:
        raise UsageError(
            f"{folder} has no record of norms yet. Norms are recorded at each evaluation (--evaluate-every) of a "
            f"network with residual blocks."
        )
    return rows


def _network(settings: Mapping[str, Any]) -> str:
    """Return the data and the size of the network of a run."""
    blocks, data = settings.get("blocks"), settings.get("dataset", "images")
    if blocks is None:
        return f"{data}, {settings.get('model', 'unknown network')}"
    by_stage = blocks if isinstance(blocks, list) else [blocks]
    by_stage = by_stage * len(settings["widths"]) if len(by_stage) == 1 else by_stage
    return f"{data}, {2 * sum(by_stage) + 1} convolutions"


def describe_run(rows: Sequence[TrainingNormsRow]) -> str:
    """Return the first and last norm and the final loss of a run."""
    first, last = rows[0], rows[-1]
    return (
        f"{first.network}: mean Frobenius norm {first.mean_frobenius:.3f} to {last.mean_frobenius:.3f}, final "
        f"training loss {last.loss:.3f}"
    )


def draw_runs(rows: Sequence[TrainingNormsRow]) -> Figure:
    """Draw a curve for each run, in the order of training."""
    figure, (axes,) = panels(1)
    for network, chosen in by_column(rows, "network").items():
        line(axes, chosen, "loss", "mean_frobenius", marker="o", markersize=3, label=network)
    axes.set_xlabel("training loss")
    axes.set_ylabel("mean Frobenius norm of the blocks' kernels")
    axes.set_title("Li et al., measurement of Figure 2")
    axes.legend()
    return figure


RUNS_EXPERIMENT = Experiment(
    "training-norms", run_cases, read_norms, {"training-norms": draw_runs}, describe_run, verdict_by="network"
)
