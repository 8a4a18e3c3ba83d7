"""All constructions on the same points: numbers and bits, how far a point may move, and what rounding takes."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf.expressivity import construct, construct_lookup, construct_three_layers, lower_bound, radii_of
from idmatters_tf.expressivity._samples import distinct_rows
from idmatters_tf.expressivity.construction import SMALLEST_MARGIN, Order
from idmatters_tf.expressivity.lookup import FLOAT_BITS
from trainers.experiments.panels import add_legend, by_column, note, panels, sample_of
from trainers.experiments.registry import Counter, Experiment, ProgressCallback
from trainers.expressivity.sample import Sample
from trainers.expressivity.scaling import FRACTIONS
from trainers.expressivity.settings import Settings

# Radii of the residual networks are taken of the first rows of the sample: a row costs as much as the whole network.
RADIUS_ROWS = 500
# Beyond, order "ridge" would take longer than all else.
RIDGE_ROWS = 15_000
# Some numbers of the residual networks do not depend on their order, and both tables have the same thresholds: the next
# curve would hide these, were they not wide and faint.
BEHIND: dict[str, Any] = {"linewidth": 4, "markersize": 8, "alpha": 0.4, "zorder": 1.5}
STYLES: dict[str, dict[str, Any]] = {
    "hardt-ma, norm": {"color": "tab:blue", **BEHIND},
    "hardt-ma, ridge": {"color": "tab:cyan"},
    "yun": {"color": "tab:green"},
    "lookup": {"color": "tab:orange", **BEHIND},
    "bit-extraction": {"color": "tab:red"},
}


@dataclasses.dataclass(frozen=True)
class ConstructionRow:
    """One network; None where the construction refuses.

    Attributes:
        construction: with its order where there is one.
        n, d, classes: of the sample, distinct rows alone.
        parameters: numbers stored.
        lower_bound: numbers of 64 bits that any memoriser of so many labels needs.
        bits_a_row: 64 times the parameters over n; log2(r) is the bound.
        smallest_radius, median_radius: certified, in the norm of x, over `radius_rows` rows.
        radius_rows: how many rows.
        rounding: the share of the rounding error allowed that float64 may take: above 1 the construction refuses. For
            the residual networks the smallest relative margin that is accepted over the smallest that there is.
        refused: the reason.
    """

    construction: str
    n: int
    d: int
    classes: int
    parameters: int | None
    lower_bound: int
    bits_a_row: float | None
    smallest_radius: float | None
    median_radius: float | None
    radius_rows: int
    rounding: float | None
    refused: str


@dataclasses.dataclass(frozen=True)
class _Built:
    parameters: int
    radii: NDArray[np.float64]
    rounding: float


def measure(
    x: NDArray[Any], labels: NDArray[np.integer], classes: int, settings: Settings, progress: ProgressCallback
) -> list[ConstructionRow]:
    """Builds the network of each construction for parts of the sample of several sizes, without checking them.

    Args:
        x: (n, d).
        labels: (n,).
        classes: r.
        settings: of the program, for width and seed.
        progress: is told of each network.
    """
    width, seed = settings.network.width, settings.network.seed

    def residual(order: Order) -> Callable[..., _Built]:
        def build(points: NDArray[Any], their_labels: NDArray[np.integer]) -> _Built:
            weights = construct(points, their_labels, classes, width, order, seed)
            arrays = (weights.projection, weights.bias, weights.U, weights.s, weights.V)
            arrays += (weights.last_U, weights.last_s, weights.last_V)
            return _Built(
                sum(array.size for array in arrays if array is not None),
                radii_of(weights, points[:RADIUS_ROWS]),
                SMALLEST_MARGIN / float(weights.margins.min()),
            )

        return build

    def on_a_line(make: Callable[..., Any]) -> Callable[..., _Built]:
        def build(points: NDArray[Any], their_labels: NDArray[np.integer]) -> _Built:
            found = make(points, their_labels)
            return _Built(found.parameters, found.radii, found.rounding)

        return build

    builders = {
        "hardt-ma, norm": residual("norm"),
        "hardt-ma, ridge": residual("ridge"),
        "yun": on_a_line(lambda points, names: construct_three_layers(points, names, classes, seed)),
        "lookup": on_a_line(lambda points, names: construct_lookup(points, names, classes, False, seed)),
        "bit-extraction": on_a_line(lambda points, names: construct_lookup(points, names, classes, True, seed)),
    }
    sizes = sorted({max(2, len(x) // fraction) for fraction in FRACTIONS})
    rows: list[ConstructionRow] = []
    counter = Counter(progress, "constructions", len(sizes) * len(builders))
    for size in sizes:
        kept = distinct_rows(x[:size], labels[:size])
        points, their_labels = x[kept], labels[kept]
        for name, build in builders.items():
            if name == "hardt-ma, ridge" and len(points) > RIDGE_ROWS:
                counter.advance()
                continue
            rows.append(_row(name, build, points, their_labels, classes))
            counter.advance()
    return rows


def _row(
    name: str, build: Callable[..., _Built], points: NDArray[Any], labels: NDArray[np.integer], classes: int
) -> ConstructionRow:
    n, d = points.shape
    try:
        built, refused = build(points, labels), ""
    except ValueError as error:
        built, refused = None, str(error)
    return ConstructionRow(
        construction=name,
        n=n,
        d=d,
        classes=classes,
        parameters=built.parameters if built else None,
        lower_bound=lower_bound(n, classes),
        bits_a_row=FLOAT_BITS * built.parameters / n if built else None,
        smallest_radius=float(built.radii.min()) if built else None,
        median_radius=float(np.median(built.radii)) if built else None,
        radius_rows=len(built.radii) if built else 0,
        rounding=built.rounding if built else None,
        refused=refused,
    )


def draw(rows: Sequence[ConstructionRow]) -> Figure:
    """Parameters, bits a row, radii and what rounding takes, against n."""
    figure, axes = panels(4)
    kinds = by_column(rows, "construction")
    styles = {name: {"marker": "o", "markersize": 4, **STYLES[name]} for name in kinds}
    for name, of_kind in kinds.items():
        for each, column in zip(axes, ("parameters", "bits_a_row", "median_radius", "rounding"), strict=True):
            _line(each, of_kind, column, **styles[name])
        _line(axes[2], of_kind, "smallest_radius", **styles[name] | {"linestyle": "--", "marker": "v"})
    if not axes[2].lines:
        note(axes[2], "no finite radius: all labels are the same")
    first = next(iter(kinds.values()))
    sizes, bounds = [row.n for row in first], [row.lower_bound for row in first]
    axes[0].plot(sizes, bounds, "k:")
    axes[1].plot(sizes, [FLOAT_BITS * bound / n for n, bound in zip(sizes, bounds, strict=True)], "k:")
    axes[3].axhline(1.0, color="black", linestyle="-.", linewidth=1)
    titles = (
        "numbers stored",
        f"bits a row, {FLOAT_BITS} for each number",
        "certified radius: median, smallest (dashed)",
        "share of the rounding allowed",
    )
    for each, title in zip(axes, titles, strict=True):
        each.set_xscale("log")
        each.set_yscale("log")
        each.set_title(title, fontsize=9)
        each.set_xlabel("rows n", fontsize=9)
        each.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=30, fontsize=7)
        each.minorticks_off()
    handles = [sample_of(_extent(name, of_kind, max(sizes)), **styles[name]) for name, of_kind in kinds.items()]
    handles += [sample_of("lower bound", color="black", linestyle=":")]
    handles += [sample_of("refused above", color="black", linestyle="-.", linewidth=1)]
    add_legend(figure, handles, columns=3)
    return figure


def _extent(name: str, rows: Sequence[ConstructionRow], largest: int) -> str:
    """A construction's name, and where its curves end unless that is at the largest size."""
    refused = [row.n for row in rows if row.parameters is None]
    last = max((row.n for row in rows if row.parameters is not None), default=0)
    if last == largest:
        return name
    return f"{name} (refused from {min(refused):,} rows)" if refused else f"{name} (built up to {last:,} rows)"


def _line(axes: Axes, rows: Sequence[ConstructionRow], column: str, **style: Any) -> None:
    points = [(row.n, getattr(row, column)) for row in rows if getattr(row, column) is not None]
    # A single label has no edge: its radii are infinite.
    points = [(n, value) for n, value in points if np.isfinite(value) and value > 0]
    if points:
        axes.plot(*zip(*points, strict=True), **style)


def _run(sample: Sample, settings: Settings, progress: ProgressCallback) -> list[ConstructionRow]:
    return measure(sample.x, sample.labels, sample.classes, settings, progress)


def experiment(settings: Settings) -> Experiment[Sample, Settings, ConstructionRow]:
    """The experiment; its figure says what was memorised."""
    data = settings.data

    def titled(rows: Sequence[ConstructionRow]) -> Figure:
        figure = draw(rows)
        what = f"{data.dataset}, {data.labels} labels" if data.dataset != "random" else "random points and labels"
        figure.suptitle(f"memorisers of {what}, d = {rows[0].d:,}, r = {rows[0].classes}", fontsize=10)
        return figure

    return Experiment("constructions", ConstructionRow, _run, {"constructions": titled})
