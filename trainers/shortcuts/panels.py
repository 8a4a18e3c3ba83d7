"""What the figures of `trainers.shortcuts` have in common."""

from collections.abc import Sequence
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Row = TypeVar("Row")

COLORS = {
    "xavier": "tab:green",
    "orthogonal": "tab:orange",
    "1-shortcut": "tab:red",
    "2-shortcut": "tab:blue",
    "3-shortcut": "tab:purple",
}


def panels(count: int) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels in a row."""
    figure = Figure(figsize=(4.4 * count + 0.6, 4.2), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    for each in axes:
        each.grid(alpha=0.3)
    return figure, list(axes)


def add_legend(figure: Figure, axes: Axes) -> None:
    """One legend below all panels, of the curves in one of them."""
    columns = 3 if len(figure.axes) == 1 else 5
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns, fontsize=8)


def by_column(rows: Sequence[Row], column: str) -> dict[Any, list[Row]]:
    """The rows of each value of a column, in order of appearance."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(getattr(row, column), []).append(row)
    return groups


def mark_depths(axes: Axes, rows: Sequence[Any]) -> None:
    """A logarithmic axis of depths, a tick at each."""
    depths = sorted({row.depth for row in rows})
    axes.set_xscale("log")
    axes.set_xticks(depths, list(map(str, depths)), fontsize=8)
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes.set_xlabel("depth, layers")
