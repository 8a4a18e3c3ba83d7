"""Figures as wide as a page's column: panels in two columns, and one legend."""

from collections.abc import Sequence
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

Row = TypeVar("Row")

WIDTH, PANEL_HEIGHT = 8.0, 3.1


def panels(count: int, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, at most two in a row.

    Args:
        count: of the panels.
        sharey: whether all have the same vertical axis.
    """
    columns = min(count, 2)
    rows = -(-count // columns)
    width = WIDTH if columns == 2 else 0.75 * WIDTH
    figure = Figure(figsize=(width, PANEL_HEIGHT * rows + 0.8), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=sharey).flat)
    for each in axes[count:]:
        each.remove()
    for each in axes[:count]:
        each.grid(alpha=0.3)
        each.tick_params(labelsize=8)
    return figure, axes[:count]


def add_legend(figure: Figure, handles: Sequence[Any] | None = None, columns: int = 4) -> None:
    """One legend below all panels.

    Args:
        figure: with curves that have labels.
        handles: what it shows; by default every curve of the first panel that has curves of this name.
        columns: of the legend.
    """
    if handles is None:
        named = {}
        for axes in figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                named.setdefault(label, handle)
        labels, handles = list(named), list(named.values())
    else:
        labels = [handle.get_label() for handle in handles]
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8)


def sample_of(label: str, **style: Any) -> Line2D:
    """An entry of a legend that stands for several curves."""
    return Line2D([], [], label=label, **{"color": "grey", **style})


def note(axes: Axes, text: str) -> None:
    """Says in a corner of a panel what is missing there, and why."""
    axes.text(0.03, 0.04, text, transform=axes.transAxes, fontsize=7, color="dimgrey", va="bottom")


def line(axes: Axes, rows: Sequence[Any], x: str, y: str, **style: Any) -> bool:
    """Draws one column against another, without the rows that have no value; a single point as a dot.

    Returns:
        Whether there was anything to draw.
    """
    points = [(getattr(row, x), getattr(row, y)) for row in rows if getattr(row, y) is not None]
    if len(points) == 1:
        style.setdefault("marker", "o")
    if points:
        axes.plot(*zip(*points, strict=True), **style)
    return bool(points)


def by_columns(rows: Sequence[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows of each combination of values of the columns, in order of appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, column) for column in columns), []).append(row)
    return groups


def by_column(rows: Sequence[Row], column: str) -> dict[Any, list[Row]]:
    """The rows of each value of a column, in order of appearance."""
    return {value: chosen for (value,), chosen in by_columns(rows, column).items()}
