"""Figures of experiments: panels in two columns, curves and one legend."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from trainers.experiments.program import group_by


def panel_for_each(
    rows: Sequence[object],
    column: str,
    draw: Callable[..., None],
    each: int = 1,
    *,
    most: int | None = None,
    label: str | None = None,
    lowest: float | None = None,
    handles: Sequence[Artist] = (),
) -> Figure:
    """Return a figure with panels for the values of a column, at most two in a row, and a legend.

    Args:
        rows: rows of a table.
        column: name of the column.
        draw: function of the panels of a value and its rows.
        each: number of panels for each value.
        most: number of values that are drawn. If None, all are.
        label: label of a logarithmic vertical axis that all panels share, with the values as titles.
        lowest: lower end of the shared axis; smaller numbers are rounding errors.
        handles: entries of the legend. By default a curve of each label.
    """
    groups = list(group_by(rows, column).items())[:most]
    count = each * len(groups)
    columns = min(count, 2)
    lines = -(-count // columns)
    figure = Figure(figsize=(8.0 if columns == 2 else 6.0, 3.1 * lines + 0.8), layout="constrained")
    axes = list(figure.subplots(lines, columns, squeeze=False, sharey=label is not None).flat)
    for panel in axes[count:]:
        panel.remove()
    for number, (value, chosen) in enumerate(groups):
        own = axes[each * number : each * (number + 1)]
        for panel in own:
            panel.grid(alpha=0.3)
            if label is not None:
                panel.set(title=str(value), yscale="log")
        draw(*own, chosen)
    if label is not None:
        axes[0].set_ylim(bottom=lowest)
        figure.supylabel(label)
    add_legend(figure, handles)
    return figure


def add_legend(figure: Figure, handles: Iterable[Artist] = ()) -> None:
    """Add one legend below all panels, by default with a curve of each label."""
    curves = [axes.get_legend_handles_labels() for axes in figure.axes]
    handles = handles or {name: handle for pair in curves for handle, name in zip(*pair, strict=True)}.values()
    if not handles:
        return
    figure.legend(handles=list(handles), loc="outside lower center", ncols=4)


def make_legend_entry(label: str, **style: Any) -> Line2D:
    """Return an entry of a legend that stands for several curves."""
    return Line2D([], [], label=label, **{"color": "grey", **style})


def line(axes: Axes, rows: Sequence[object], x: str, y: str, **style: Any) -> None:
    """Draw one column against another, without rows that have no value. A single point is drawn as a dot."""
    points = [(getattr(row, x), getattr(row, y)) for row in rows if getattr(row, y) is not None]
    if len(points) == 1:
        style.setdefault("marker", "o")
    if points:
        axes.plot(*zip(*points, strict=True), **style)


def mark_sizes(axes: Axes, rows: Sequence[object], column: str) -> None:
    """Make the horizontal axis logarithmic, with a tick at each value of a column and no other ticks."""
    sizes = sorted({getattr(row, column) for row in rows})
    axes.set(xscale="log", xlabel=column)
    axes.set_xticks(sizes, list(map(str, sizes)))
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
