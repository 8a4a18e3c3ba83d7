"""Figure 2: norms of the blocks against the training loss, from the logs of `trainers.cifar`."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from trainers.cli.arguments import UsageError
from trainers.experiments.experiment import Cases, Experiment, by_column
from trainers.experiments.panels import panels
from trainers.run.folder import Run


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


def cases(runs: Runs, settings: Any) -> Cases:
    """Yield (folder, label) for each run."""
    labels: set[str] = set()
    for folder in runs.folders:
        label = _network(Run(folder).config()["settings"])
        yield folder, f"{label}, {folder}" if label in labels else label
        labels.add(label)


def measure(folder: str, label: str) -> list[TrainingNormsRow]:
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


def describe(rows: Sequence[TrainingNormsRow]) -> str:
    """Return the first and last norm and the final loss of a run."""
    first, last = rows[0], rows[-1]
    return (
        f"{first.network}: mean Frobenius norm {first.mean_frobenius:.3f} to {last.mean_frobenius:.3f}, final "
        f"training loss {last.loss:.3f}"
    )


def draw(rows: Sequence[TrainingNormsRow]) -> Figure:
    """Draw a curve for each run, in the order of training."""
    figure, (axes,) = panels(1)
    for network, chosen in by_column(rows, "network").items():
        losses, norms = [row.loss for row in chosen], [row.mean_frobenius for row in chosen]
        axes.plot(losses, norms, marker="o", markersize=3, label=network)
    axes.set_xlabel("training loss")
    axes.set_ylabel("mean Frobenius norm of the blocks' kernels")
    axes.set_title("Li et al., measurement of Figure 2")
    axes.legend()
    return figure


EXPERIMENT = Experiment(
    "training-norms", cases, measure, {"training-norms": draw}, describe, verdict_by="network", unit="runs"
)
