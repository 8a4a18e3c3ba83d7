"""Curves over the logarithm of the loss, made comparable between runs as Li et al. do: by linear interpolation."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class SpectrumAtLoss(Protocol):
    """The columns of a table from which curves are made."""

    @property
    def run(self) -> int: ...
    @property
    def loss(self) -> float: ...
    @property
    def max_abs(self) -> float: ...
    @property
    def p10_abs(self) -> float: ...
    @property
    def index(self) -> float: ...


def interpolated(rows: Sequence[SpectrumAtLoss], column: str, grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """A column against the loss: each run interpolated linearly in log10 of the loss, NaN outside its losses.

    Args:
        rows: of one kind of network.
        column: "index", "log10_max_abs", "log10_p10_abs", or "log10_condition", their difference.
        grid: log10 of losses.

    Returns:
        (runs, grid).
    """
    curves = []
    for run in sorted({row.run for row in rows}):
        points = [(np.log10(row.loss), _value(row, column)) for row in rows if row.run == run and row.loss > 0]
        x, y = np.array(sorted(points)).T
        curves.append(np.interp(grid, x, y, left=np.nan, right=np.nan))
    return np.array(curves)


def at_common_losses(
    kinds: Sequence[Sequence[SpectrumAtLoss]], column: str, points: int = 40
) -> list[NDArray[np.float64]] | None:
    """The means over runs at the losses that all kinds of network pass; None where there are no such losses.

    Args:
        kinds: the rows of each kind.
        column: see `interpolated`.
        points: how many losses, evenly spread in logarithm, the lowest first.

    Returns:
        For each kind (points,).
    """
    spans = []
    for rows in kinds:
        by_run: dict[int, list[float]] = {}
        for row in rows:
            if row.loss > 0:
                by_run.setdefault(row.run, []).append(float(np.log10(row.loss)))
        if not by_run:
            return None
        spans.append((max(map(min, by_run.values())), min(map(max, by_run.values()))))
    low, high = max(span[0] for span in spans), min(span[1] for span in spans)
    if low >= high:
        return None
    grid = np.linspace(low, high, points)
    return [np.nanmean(interpolated(rows, column, grid), axis=0) for rows in kinds]


def _value(row: SpectrumAtLoss, column: str) -> float:
    if column == "index":
        return row.index
    if column == "log10_max_abs":
        return float(np.log10(max(row.max_abs, 1e-300)))
    if column == "log10_p10_abs":
        return float(np.log10(max(row.p10_abs, 1e-300)))
    return float(np.log10(row.max_abs) - np.log10(max(row.p10_abs, row.max_abs * 1e-16)))
