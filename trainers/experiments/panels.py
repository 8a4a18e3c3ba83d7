"""Figures of experiments: panels in two columns, curves, notes and one legend."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from trainers.experiments.experiment import Row, by_columns

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
    columns_of_legend: int = 4,
) -> Figure:
    """Return a figure with a panel for each value of a column, and a legend below.

    The vertical axis is shared and logarithmic.

    Args:
        rows: rows of the table.
        column: name of the column; its value is the title of a panel.
        draw: draws the rows of one panel.
        label: label of the vertical axes.
        most: largest number of panels; the title of the figure reports omitted panels.
        lowest: lower end of the vertical axes, where rounding errors begin.
        handles: see `add_legend`.
        columns_of_legend: see `add_legend`.
    """
    groups = list(by_columns(rows, column).items())
    figure, axes = panels(len(groups[:most]), sharey=True)
    if len(groups) > len(axes):
        figure.suptitle(f"the first {most} of {len(groups)} {column}s; the table has all of them", fontsize=8)
    for panel, ((value,), chosen) in zip(axes, groups[:most], strict=True):
        panel.set(title=str(value), yscale="log")
        draw(panel, chosen)
    if lowest is not None:
        if not any(math.isfinite(panel.dataLim.minposy) for panel in axes):
            # All values are zero, and Matplotlib would warn about missing limits.
            axes[0].autoscale(False, axis="y")
            axes[0].set_ylim(top=1)
        for panel in axes:
            panel.set_ylim(bottom=lowest)
    figure.supylabel(label)
    add_legend(figure, handles, columns_of_legend)
    return figure


def add_legend(figure: Figure, handles: Sequence[Any] | None = None, columns: int = 4) -> None:
    """Add one legend below all panels, by default with the first curve of each label."""
    if handles is None:
        named = {}
        for axes in figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                named.setdefault(label, handle)
        labels, handles = list(named), list(named.values())
    else:
        labels = [handle.get_label() for handle in handles]
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def make_legend_entry(label: str, **style: Any) -> Line2D:
    """Return an entry of a legend that stands for several curves."""
    return Line2D([], [], label=label, **{"color": "grey", **style})


def note(axes: Axes, text: str) -> None:
    """Write a note about missing curves in a corner of a panel."""
    axes.text(0.03, 0.04, text, transform=axes.transAxes, fontsize=7, color="dimgrey", va="bottom")


def line(axes: Axes, rows: Sequence[Any], x: str, y: str, **style: Any) -> bool:
    """Draw one column against another, without rows that have no value. A single point is drawn as a dot.

    Returns:
        True if there was anything to draw.
    """
    points = [(getattr(row, x), getattr(row, y)) for row in rows if getattr(row, y) is not None]
    if len(points) == 1:
        style.setdefault("marker", "o")
    if points:
        axes.plot(*zip(*points, strict=True), **style)
    return bool(points)


def mark_sizes(axes: Axes, sizes: Sequence[float] | NDArray[np.float64], **style: Any) -> None:
    """Make the horizontal axis logarithmic, with a labeled tick at each size and no minor ticks on either axis."""
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes], **style)
    axes.minorticks_off()
