"""What the figures of `trainers.landscape` have in common: a panel for each of the first few targets."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trainers.experiments.panels import by_column, panels

Row = TypeVar("Row")


def panels_by_target(
    rows: Sequence[Row],
    panel: Callable[[Axes, Sequence[Row]], None],
    label: str,
    most: int,
    lowest: float | None = None,
) -> Figure:
    """A figure with a panel for each of the first targets, which says how many others there are.

    The legend is the caller's.

    Args:
        rows: with a `target` each.
        panel: draws the rows of one target.
        label: of the vertical axes, which are logarithmic.
        most: how many panels there are at most.
        lowest: the lower end of the vertical axes, where rounding errors begin.
    """
    found = list(by_column(rows, "target").items())
    targets = found[:most]
    figure, axes = panels(len(targets), sharey=True)
    if len(found) > most:
        figure.suptitle(f"the first {most} of {len(found)} targets; the table has all of them", fontsize=8)
    for each, (target, chosen) in zip(axes, targets, strict=True):
        each.set_title(target, fontsize=9)
        each.set_yscale("log")
        panel(each, chosen)
    if lowest is not None:
        if not any(math.isfinite(each.dataLim.minposy) for each in axes):
            # All is zero. Matplotlib would warn that it finds no limits.
            axes[0].autoscale(False, axis="y")
            axes[0].set_ylim(top=1)
        axes[0].set_ylim(bottom=lowest)
    figure.supylabel(label, fontsize=9)
    return figure


def color_by_depth(rows: Sequence[Any]) -> dict[int, str]:
    """A color for each depth, the shallowest first."""
    return {depth: f"C{number}" for number, depth in enumerate(sorted({row.depth for row in rows}))}


def compare_steps(axes: Axes, shown: Sequence[float]) -> None:
    """Labels axes of promised against measured steps, and draws the line on which they are equal.

    Args:
        axes: with logarithmic axes, everything drawn.
        shown: all numbers of steps drawn; without any there is no line.
    """
    if shown:
        ends = [min(shown) / 2, max(shown) * 2]
        axes.loglog(ends, ends, "k:", linewidth=1)
    axes.set_xlabel("steps measured", fontsize=9)
    axes.set_ylabel("steps that suffice, promised", fontsize=9)
