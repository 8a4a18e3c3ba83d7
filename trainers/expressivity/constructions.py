"""Comparison of all constructions on the same points: numbers and bits, certified radii, and rounding errors."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf.expressivity import compute_radii, construct, construct_lookup, construct_three_layers, lower_bound
from idmatters_tf.expressivity.construction import SMALLEST_MARGIN, Order
from idmatters_tf.expressivity.lookup import FLOAT_BITS
from trainers.experiments.experiment import Cases, Experiment, by_column
from trainers.experiments.panels import add_legend, make_legend_entry, mark_sizes, note, panels
from trainers.expressivity.sample import Sample, sizes
from trainers.expressivity.settings import NetworkSettings, Settings

# Number of rows for the radii of the residual networks, each of which costs as much as the whole network.
RADIUS_ROWS = 500
# Largest number of rows for order "ridge", which would take longer than everything else beyond it.
RIDGE_ROWS = 15_000
# Wide and faint curves for values that coincide with those of another curve: some numbers of the residual networks do
# not depend on their order, and both tables have the same thresholds.
BEHIND: dict[str, Any] = {"linewidth": 4, "markersize": 8, "alpha": 0.4, "zorder": 1.5}
STYLES: dict[str, dict[str, Any]] = {
    "hardt-ma, norm": {"color": "tab:blue", **BEHIND},
    "hardt-ma, ridge": {"color": "tab:cyan"},
    "yun": {"color": "tab:green"},
    "lookup": {"color": "tab:orange", **BEHIND},
    "bit-extraction": {"color": "tab:red"},
}
ORDERS: dict[str, Order] = {"hardt-ma, norm": "norm", "hardt-ma, ridge": "ridge"}


@dataclasses.dataclass(frozen=True)
class ConstructionRow:
    """One network. Its numbers are None if the construction raises an error.

    Attributes:
        construction: name of the construction, with the order of residual networks.
        n, d, classes: size of the sample, counting distinct rows.
        parameters: numbers stored.
        lower_bound: lower bound of 64-bit numbers for any memorizer of these labels.
        bits_a_row: 64 times the parameters divided by n; the lower bound is log2(r).
        smallest_radius, median_radius: certified radii, in the norm of x, over `radius_rows` rows.
        radius_rows: number of rows of the radii.
        rounding: rounding error of float64 relative to the allowed one; the construction raises an error above 1. For
            the residual networks, the smallest accepted relative margin divided by the smallest margin.
        refused: error message.
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


def cases(sample: Sample, settings: Settings) -> Cases:
    """Yield the arguments of `measure` for parts of the sample of several sizes, and each construction."""
    for rows in sizes(sample):
        for name in STYLES:
            yield name, sample, rows, settings.network


def measure(name: str, sample: Sample, rows: int, network: NetworkSettings) -> list[ConstructionRow]:
    """Build the network of a construction without checking it.

    Args:
        name: one of `STYLES`.
        sample: points and labels.
        rows: number of points, the first ones.
        network: width and seed.
    """
    points, labels = sample.distinct(rows)
    if name == "hardt-ma, ridge" and len(points) > RIDGE_ROWS:
        return []
    n, d = points.shape
    try:
        (parameters, radii, rounding), refused = _build(name, points, labels, sample.classes, network), ""
    except ValueError as error:
        parameters = radii = rounding = None
        refused = str(error)
    row = ConstructionRow(
        construction=name,
        n=n,
        d=d,
        classes=sample.classes,
        parameters=parameters,
        lower_bound=lower_bound(n, sample.classes),
        bits_a_row=None if parameters is None else FLOAT_BITS * parameters / n,
        smallest_radius=None if radii is None else float(radii.min()),
        median_radius=None if radii is None else float(np.median(radii)),
        radius_rows=0 if radii is None else len(radii),
        rounding=rounding,
        refused=refused,
    )
    return [row]


def _build(
    name: str, points: NDArray[Any], labels: NDArray[np.integer], classes: int, network: NetworkSettings
) -> tuple[int, NDArray[np.float64], float]:
    """Return (parameters, radii, rounding), see `ConstructionRow`."""
    if name in ORDERS:
        weights = construct(points, labels, classes, network.width, ORDERS[name], network.seed)
        rounding = SMALLEST_MARGIN / float(weights.margins.min())
        return weights.parameters, compute_radii(weights, points[:RADIUS_ROWS]), rounding
    if name == "yun":
        found = construct_three_layers(points, labels, classes, network.seed)
    else:
        found = construct_lookup(points, labels, classes, name == "bit-extraction", network.seed)
    return found.parameters, found.radii, found.rounding


def draw(rows: Sequence[ConstructionRow]) -> Figure:
    """Draw parameters, bits per row, radii and rounding errors against n."""
    figure, axes = panels(4)
    kinds = by_column(rows, "construction")
    styles = {name: {"marker": "o", "markersize": 4, **STYLES[name]} for name in kinds}
    for name, chosen in kinds.items():
        for each, column in zip(axes, ("parameters", "bits_a_row", "median_radius", "rounding"), strict=True):
            _line(each, chosen, column, **styles[name])
        _line(axes[2], chosen, "smallest_radius", **styles[name] | {"linestyle": "--", "marker": "v"})
    if not axes[2].lines:
        note(axes[2], "no finite radius: all labels are the same")
    first = next(iter(kinds.values()))
    counts, bounds = [row.n for row in first], [row.lower_bound for row in first]
    axes[0].plot(counts, bounds, "k:")
    axes[1].plot(counts, [FLOAT_BITS * bound / n for n, bound in zip(counts, bounds, strict=True)], "k:")
    axes[3].axhline(1.0, color="black", linestyle="-.", linewidth=1)
    titles = (
        "numbers stored",
        f"bits per row, {FLOAT_BITS} per number",
        "certified radius: median, smallest (dashed)",
        "rounding error over allowed error",
    )
    for each, text in zip(axes, titles, strict=True):
        each.set(title=text, xlabel="rows n", yscale="log")
        mark_sizes(each, counts, rotation=30, fontsize=7)
    handles = [make_legend_entry(_extent(name, chosen, max(counts)), **styles[name]) for name, chosen in kinds.items()]
    handles += [make_legend_entry("lower bound", color="black", linestyle=":")]
    handles += [make_legend_entry("limit of float64", color="black", linestyle="-.", linewidth=1)]
    add_legend(figure, handles, columns=3)
    return figure


def _extent(name: str, rows: Sequence[ConstructionRow], largest: int) -> str:
    """Return the name of a construction, with the end of its curves if this is not the largest size."""
    refused = [row.n for row in rows if row.parameters is None]
    last = max((row.n for row in rows if row.parameters is not None), default=0)
    if last == largest:
        return name
    return f"{name} (impossible from {min(refused):,} rows)" if refused else f"{name} (built up to {last:,} rows)"


def _line(axes: Axes, rows: Sequence[ConstructionRow], column: str, **style: Any) -> None:
    points = [(row.n, getattr(row, column)) for row in rows if getattr(row, column) is not None]
    # The radii of a single label are infinite.
    points = [(n, value) for n, value in points if np.isfinite(value) and value > 0]
    if points:
        axes.plot(*zip(*points, strict=True), **style)


def title(rows: Sequence[ConstructionRow], settings: Settings) -> str:
    """Return the title of the figure."""
    data = settings.data
    points = "random points and labels" if data.dataset == "random" else f"{data.dataset}, {data.labels} labels"
    return f"memorizers of {points}, d = {rows[0].d:,}, r = {rows[0].classes}"


EXPERIMENT = Experiment("constructions", cases, measure, {"constructions": draw}, title=title)
