"""Figures of experiments: panels in two columns, curves and one legend."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from trainers.experiments.experiment import Row, by_column

WIDTH, PANEL_HEIGHT = 8.0, 3.1


def panels(count: int, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels, at most two in a row. `sharey` is True for a shared vertical axis."""
    columns = min(count, 2)
    rows = -(-count // columns)
    width = WIDTH if columns == 2 else 0.75 * WIDTH
    figure = Figure(figsize=(width, PANEL_HEIGHT * rows + 0.8), layout="constrained")
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
    most: int | None = None,
    lowest: float | None = None,
    handles: Sequence[Any] | None = None,
) -> Figure:
    """Return a figure with a panel for each value of a column, and a legend below.

    The vertical axis is shared and logarithmic.

    Args:
        rows: rows of the table.
        column: name of the column; its value is the title of a panel.
        draw: draws the rows of one panel.
        label: label of the vertical axes.
        most: largest number of panels.
        lowest: lower end of the vertical axes, where rounding errors begin.
        handles: see `add_legend`.
    """
    groups = list(by_column(rows, column).items())[:most]
    figure, axes = panels(len(groups), sharey=True)
    for panel, (value, chosen) in zip(axes, groups, strict=True):
        panel.set(title=str(value), yscale="log")
        draw(panel, chosen)
    if lowest is not None:
        axes[0].set_ylim(bottom=lowest)
    figure.supylabel(label)
    add_legend(figure, handles)
    return figure


def add_legend(figure: Figure, handles: Sequence[Any] | None = None) -> None:
    """Add one legend below all panels, by default with the first curve of each label."""
    if handles is None:
        named = {}
        for axes in figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                named.setdefault(label, handle)
        handles = list(named.values())
    labels = [handle.get_label() for handle in handles]
    figure.legend(handles, labels, loc="outside lower center", ncols=4)


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
    axes.set_xscale("log")
    axes.set_xticks(sizes, list(map(str, sizes)))
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes.set_xlabel(column)
