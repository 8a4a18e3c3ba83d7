"""Growth of the parameters, margin, time and memory of a memorizer with n, k and d."""

import dataclasses
import time
import tracemalloc
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf.expressivity import construct
from trainers.experiments.experiment import Cases, Experiment
from trainers.experiments.panels import WIDTH, mark_sizes, note
from trainers.expressivity.sample import Sample, sizes
from trainers.expressivity.settings import NetworkSettings, Settings

WIDTHS = (4, 8, 16, 32, 64)
DIMS = (16, 64, 256, 1024)
# Number of rows for varying widths and dimensions: sufficient for the trend, and a matter of seconds.
ROWS = 10_000

NAMES = {"n": "rows n", "k": "width k", "d": "dimension d"}


@dataclasses.dataclass(frozen=True)
class ScalingRow:
    """One network. Its numbers are None if the construction fails, as for the paper's order at this size."""

    varied: str  # "n", "k" or "d"
    n: int  # number of distinct rows
    k: int  # width
    d: int  # dimension
    parameters: int | None = None
    smallest_margin: float | None = None  # relative margins of the units
    median_margin: float | None = None
    seconds: float | None = None  # time of the construction
    megabytes: float | None = None  # peak of the memory allocated by the construction


def cases(sample: Sample, settings: Settings) -> Cases:
    """Yield the arguments of `measure` for several n, k and, with random points, d."""
    network, few = settings.network, min(len(sample.x), ROWS)
    for rows in sizes(sample):
        yield "n", sample, rows, network
    for width in WIDTHS:
        yield "k", sample, few, dataclasses.replace(network, width=width)
    if settings.data.dataset == "random":
        rng = np.random.default_rng(network.seed)
        for dim in DIMS:
            yield "d", dataclasses.replace(sample, x=rng.standard_normal((few, dim), np.float32)), few, network


def measure(varied: str, sample: Sample, rows: int, network: NetworkSettings) -> list[ScalingRow]:
    """Build a network of the first rows without checking it."""
    points, labels = sample.distinct(rows)
    row = ScalingRow(varied, len(points), network.width, points.shape[1])
    arguments = points, labels, sample.classes, network.width, network.order, network.seed
    try:
        start = time.perf_counter()
        weights = construct(*arguments)
        seconds = time.perf_counter() - start
        tracemalloc.start()
        try:
            construct(*arguments)
            memory = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    except ValueError:
        return [row]
    built = dataclasses.replace(
        row,
        parameters=weights.parameters,
        smallest_margin=float(weights.margins.min()),
        median_margin=float(np.median(weights.margins)),
        seconds=seconds,
        megabytes=memory / 1e6,
    )
    return [built]


def draw(rows: Sequence[ScalingRow]) -> Figure:
    """Draw a column of panels for each varied quantity of n, k and d."""
    varied = [name for name in NAMES if any(row.varied == name and row.seconds is not None for row in rows)]
    figure = Figure(figsize=(WIDTH, 8), layout="constrained")
    if not varied:
        figure.text(0.5, 0.5, "impossible at every size", ha="center")
        return figure
    axes = figure.subplots(3, len(varied), squeeze=False, sharey="row")
    for column, name in enumerate(varied):
        chosen = [row for row in rows if row.varied == name and row.seconds is not None]
        values = np.array([getattr(row, name) for row in chosen], float)
        impossible = [f"{getattr(row, name):,}" for row in rows if row.varied == name and row.seconds is None]
        fixed = ", ".join(f"{other} = {getattr(chosen[-1], other):,}" for other in NAMES if other != name)
        axes[0][column].set_title(fixed)
        _draw_column(list(axes[:, column]), name, values, chosen)
        axes[2][column].set_xlabel(NAMES[name])
        if impossible:
            note(axes[0][column], f"impossible: {name} = {', '.join(impossible)}")
        for each in axes[:, column]:
            each.set_yscale("log")
            mark_sizes(each, list(values), rotation=30, fontsize=7)
            each.grid(alpha=0.3)
            each.legend(fontsize=7)
    for each, label in zip(axes[:, 0], ("parameters", "relative margin", "seconds to build, megabytes"), strict=True):
        each.set_ylabel(label)
    return figure


def _draw_column(axes: Sequence[Axes], name: str, sizes: NDArray[np.float64], rows: Sequence[ScalingRow]) -> None:
    def column(key: str) -> NDArray[np.float64]:
        return np.array([getattr(row, key) for row in rows], float)

    axes[0].plot(sizes, column("parameters"), "o-", label="parameters")
    if name == "n":
        axes[0].plot(sizes, sizes * np.log(sizes), "k:", label="n ln n")
    axes[1].plot(sizes, column("median_margin"), "o-", label="median margin")
    axes[1].plot(sizes, column("smallest_margin"), "s-", label="smallest margin")
    axes[2].plot(sizes, column("seconds"), "o-", label="seconds")
    axes[2].plot(sizes, column("megabytes"), "s-", label="peak megabytes")
    if name == "n":
        axes[2].plot(sizes, column("seconds")[-1] * (sizes / sizes[-1]) ** 2, "k:", label="slope 2")


EXPERIMENT = Experiment("scaling", cases, measure, {"scaling": draw})
