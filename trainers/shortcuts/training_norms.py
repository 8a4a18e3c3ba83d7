"""Figure 2: norms of the blocks against the training loss, from the logs of `trainers.cifar`."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from trainers.cli.arguments import UsageError
from trainers.experiments.experiment import Cases, Experiment, by_column
from trainers.experiments.panels import panels
from trainers.run.folder import Run
from trainers.shortcuts.settings import NormsSettings


@dataclasses.dataclass(frozen=True)
class TrainingNormsRow:
    """One evaluation of one run.

    Attributes:
        run: folder of the run.
        network: label that distinguishes the run from the others.
        step: updates so far.
        loss: training loss of the previous record.
        mean_frobenius: mean of the Frobenius norms of the blocks' kernels.
    """

    run: str
    network: str
    step: int
    loss: float
    mean_frobenius: float


def cases(folders: Sequence[str], settings: NormsSettings) -> Cases:
    """Yield (folder, label) for each run."""
    labels: set[str] = set()
    for folder in folders:
        label = _network(Run(folder).config()["settings"])
        yield folder, f"{label}, {folder}" if label in labels else label
        labels.add(label)


def measure(folder: str, label: str) -> list[TrainingNormsRow]:
    """Read the norms of a run from its log.

    Args:
        folder: folder of the run.
        label: name of the network in the table.
    """
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
    """Return the data and the size of the network of a run of `trainers.cifar` or `trainers.imagenet`."""
    blocks, data = settings.get("blocks"), settings.get("dataset", "images")
    if blocks is None:
        return f"{data}, {settings.get('model', 'unknown network')}"
    each = blocks if isinstance(blocks, list) else [blocks]
    each = each * len(settings["widths"]) if len(each) == 1 else each
    return f"{data}, {2 * sum(each) + 1} convolutions"


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


EXPERIMENT = Experiment("training-norms", cases, measure, {"training-norms": draw})
