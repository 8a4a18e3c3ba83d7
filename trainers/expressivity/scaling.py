"""How parameters, margin, time and memory of a memoriser grow with n, k and d: measured, as a table and a figure."""

import dataclasses
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf.expressivity import construct
from idmatters_tf.expressivity._samples import distinct_rows
from idmatters_tf.expressivity.construction import Order
from trainers.experiments.panels import WIDTH, note
from trainers.experiments.registry import Counter, Experiment, ProgressCallback
from trainers.expressivity.sample import Sample
from trainers.expressivity.settings import Settings

WIDTHS = (4, 8, 16, 32, 64)
DIMS = (16, 64, 256, 1024)
# For the widths and dimensions: enough for the trend, and seconds in all.
ROWS = 10_000
FRACTIONS = (32, 16, 8, 4, 2, 1)

NAMES = {"n": "rows n", "k": "width k", "d": "dimension d"}


@dataclasses.dataclass(frozen=True)
class Plan:
    """A network to build.

    Attributes:
        varied: "n", "k" or "d".
        rows: how many of the points it memorises, the first ones.
        width: k.
        points: (n, d).
    """

    varied: str
    rows: int
    width: int
    points: NDArray[Any]


@dataclasses.dataclass(frozen=True)
class ScalingRow:
    """One network; None where the construction is impossible: the paper's order at this size, or two rows too close.

    Attributes:
        varied: "n", "k" or "d".
        n, k, d: distinct rows, width and dimension.
        parameters: of the network.
        smallest_margin, median_margin: of its units, relative.
        seconds: to build it.
        megabytes: the most memory that building it allocates.
    """

    varied: str
    n: int
    k: int
    d: int
    parameters: int | None = None
    smallest_margin: float | None = None
    median_margin: float | None = None
    seconds: float | None = None
    megabytes: float | None = None


def plans(x: NDArray[Any], settings: Settings) -> list[Plan]:
    """The networks to build.

    Args:
        x: the sample; its first rows are used.
        settings: of the program.
    """
    width, few = settings.network.width, min(len(x), ROWS)
    sizes = sorted({max(2, len(x) // fraction) for fraction in FRACTIONS})
    chosen = [Plan("n", size, width, x) for size in sizes] + [Plan("k", few, width, x) for width in WIDTHS]
    if settings.data.dataset == "random":
        rng = np.random.default_rng(settings.network.seed)
        chosen += [Plan("d", few, width, rng.standard_normal((few, dim), np.float32)) for dim in DIMS]
    return chosen


def measure(plan: Plan, labels: NDArray[np.integer], classes: int, order: Order, seed: int) -> ScalingRow:
    """Builds the network of a plan without checking it.

    Args:
        plan: one of `plans`.
        labels: (n,).
        classes: their number.
        order, seed: see `idmatters_tf.expressivity.construct`.
    """
    kept = distinct_rows(plan.points[: plan.rows], labels[: plan.rows])
    row = ScalingRow(plan.varied, len(kept), plan.width, plan.points.shape[1])
    arguments = plan.points[kept], labels[kept], classes, plan.width, order, seed
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
        return row
    arrays = (weights.projection, weights.bias, weights.U, weights.s, weights.V)
    arrays += (weights.last_U, weights.last_s, weights.last_V)
    return dataclasses.replace(
        row,
        parameters=sum(array.size for array in arrays if array is not None),
        smallest_margin=float(weights.margins.min()),
        median_margin=float(np.median(weights.margins)),
        seconds=seconds,
        megabytes=memory / 1e6,
    )


def draw(rows: Sequence[ScalingRow]) -> Figure:
    """A column of panels for each of n, k and d that was varied."""
    varied = [name for name in NAMES if any(row.varied == name and row.seconds is not None for row in rows)]
    figure = Figure(figsize=(WIDTH, 8), layout="constrained")
    if not varied:
        figure.text(0.5, 0.5, "impossible at every size", ha="center")
        return figure
    axes = figure.subplots(3, len(varied), squeeze=False, sharey="row")
    for column, name in enumerate(varied):
        chosen = [row for row in rows if row.varied == name and row.seconds is not None]
        sizes = np.array([getattr(row, name) for row in chosen], float)
        impossible = [f"{getattr(row, name):,}" for row in rows if row.varied == name and row.seconds is None]
        fixed = ", ".join(f"{other} = {getattr(chosen[-1], other):,}" for other in NAMES if other != name)
        axes[0][column].set_title(fixed, fontsize=9)
        _draw_column(list(axes[:, column]), name, sizes, chosen)
        axes[2][column].set_xlabel(NAMES[name])
        if impossible:
            note(axes[0][column], f"impossible: {name} = {', '.join(impossible)}")
        for each in axes[:, column]:
            each.set_xscale("log")
            each.set_yscale("log")
            each.set_xticks(sizes, [f"{size:,.0f}" for size in sizes], rotation=30, fontsize=7)
            each.minorticks_off()
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
    axes[2].plot(sizes, column("megabytes"), "s-", label="megabytes at most")
    if name == "n":
        axes[2].plot(sizes, column("seconds")[-1] * (sizes / sizes[-1]) ** 2, "k:", label="slope 2")


def _run(sample: Sample, settings: Settings, progress: ProgressCallback) -> list[ScalingRow]:
    chosen, rows, network = plans(sample.x, settings), [], settings.network
    counter = Counter(progress, "scaling", len(chosen))
    for plan in chosen:
        rows.append(measure(plan, sample.labels, sample.classes, network.order, network.seed))
        counter.advance()
    return rows


def experiment(settings: Settings) -> Experiment[Sample, Settings, ScalingRow]:
    """The experiment; its figure says what was memorised."""
    data, order = settings.data, settings.network.order

    def titled(rows: Sequence[ScalingRow]) -> Figure:
        figure = draw(rows)
        figure.suptitle(f"memorisers of {data.dataset}, {data.labels} labels, order {order}")
        return figure

    return Experiment("scaling", ScalingRow, _run, {"scaling": titled})
