"""Figures of experiments: panels in two columns, curves and one legend."""

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

Row = TypeVar("Row")

# Font sizes in points.
STYLE: dict[Any, Any] = {"font.size": 8, "axes.titlesize": 9, "axes.labelsize": 9, "figure.labelsize": 9}


def group_by(rows: Iterable[Row], *columns: str) -> dict[Any, list[Row]]:
    """Group rows by the value of a column, or the values of several columns, in order of appearance."""
    key = operator.attrgetter(*columns)
    groups = dict[Any, list[Row]]()
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def panels(count: int, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels, at most two in a row. `sharey` is True for a shared vertical axis."""
    columns = min(count, 2)
    rows = -(-count // columns)
    figure = Figure(figsize=(8.0 if columns == 2 else 6.0, 3.1 * rows + 0.8), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=sharey).flat)
    for panel in axes[count:]:
        panel.remove()
    for panel in axes[:count]:
        panel.grid(alpha=0.3)
    return figure, axes[:count]


def panel_for_each(
    rows: Sequence[Row],
    column: str,
    draw: Callable[[Axes, Sequence[Row]], None],
    label: str,
    most: int,
    lowest: float | None = None,
    handles: Sequence[Any] = (),
) -> Figure:
    """Return a figure with panels for the first `most` values of a column, drawn by `draw(axes, rows)`, and a legend.

    They share a logarithmic vertical axis with a label; below `lowest` are rounding errors.
    """
    groups = list(group_by(rows, column).items())[:most]
    figure, axes = panels(len(groups), sharey=True)
    for panel, (value, chosen) in zip(axes, groups, strict=True):
        panel.set(title=str(value), yscale="log")
        draw(panel, chosen)
    axes[0].set_ylim(bottom=lowest)
    figure.supylabel(label)
    add_legend(figure, handles)
    return figure


def add_legend(figure: Figure, handles: Iterable[Any] = ()) -> None:
    """Add one legend below all panels, by default with a curve of each label."""
    curves = [axes.get_legend_handles_labels() for axes in figure.axes]
    handles = handles or {name: handle for pair in curves for handle, name in zip(*pair, strict=True)}.values()
    figure.legend(handles=list(handles), loc="outside lower center", ncols=4)


def make_legend_entry(label: str, **style: Any) -> Line2D:
    """Return an entry of a legend that stands for several curves."""
    return Line2D([], [], label=label, **{"color": "grey", **style})


def line(axes: Axes, rows: Sequence[Any], x: str, y: str, **style: Any) -> None:
    """Draw one column against another, without rows that have no value. A single point is drawn as a dot."""
    points = [(getattr(row, x), getattr(row, y)) for row in rows if getattr(row, y) is not None]
    if len(points) == 1:
        style.setdefault("marker", "o")
    if points:
        axes.plot(*zip(*points, strict=True), **style)


def mark_sizes(axes: Axes, rows: Sequence[Any], column: str) -> None:
    """Make the horizontal axis logarithmic, with a tick at each value of a column and no other ticks."""
    sizes = sorted({getattr(row, column) for row in rows})
    axes.set(xscale="log", xlabel=column)
    axes.set_xticks(sizes, list(map(str, sizes)))
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
