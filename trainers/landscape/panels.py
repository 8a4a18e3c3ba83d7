"""What the figures of `trainers.landscape` have in common: a panel for each of the first few targets."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Row = TypeVar("Row")


def panels_by_target(
    rows: Sequence[Row], panel: Callable[[Axes, Sequence[Row]], None], label: str, most: int
) -> Figure:
    """A figure with a panel for each target.

    Args:
        rows: with a `target` each.
        panel: draws the rows of one target.
        label: of the vertical axes, which are logarithmic.
        most: how many panels there are at most.
    """
    targets = list(by_columns(rows, "target").items())[:most]
    figure = Figure(figsize=(4 * len(targets) + 1, 4.2), layout="constrained")
    axes = figure.subplots(1, len(targets), squeeze=False, sharey=True)
    for each, ((target,), chosen) in zip(axes[0], targets, strict=True):
        each.set_title(target, fontsize=9)
        each.set_yscale("log")
        each.grid(alpha=0.3)
        panel(each, chosen)
    axes[0][0].set_ylabel(label)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    return figure


def line(axes: Axes, rows: Sequence[Any], x: str, y: str, **style: Any) -> None:
    """Draws one column against another, without the rows that have no value."""
    points = [(getattr(row, x), getattr(row, y)) for row in rows if getattr(row, y) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), **style)


def by_columns(rows: Sequence[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows of each combination of values of the columns, in order of appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, column) for column in columns), []).append(row)
    return groups


def color_by_depth(rows: Sequence[Any]) -> dict[int, str]:
    """A color for each depth, the shallowest first."""
    return {depth: f"C{number}" for number, depth in enumerate(sorted({row.depth for row in rows}))}
