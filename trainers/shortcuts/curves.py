"""Curves over the logarithm of the loss, made comparable between runs as Li et al. do: by linear interpolation."""

import numpy as np


def interpolated(rows, column, grid):
    """A column of one kind against the loss: each run interpolated linearly in lg loss, NaN outside its losses.

    Args:
        rows: of one kind.
        column: of the rows, or "condition".
        grid: lg losses.

    Returns:
        (runs, grid).
    """
    curves = []
    for run in sorted({row["run"] for row in rows}):
        points = [(np.log10(row["loss"]), _value(row, column)) for row in rows if row["run"] == run and row["loss"] > 0]
        x, y = np.array(sorted(points)).T
        curves.append(np.interp(grid, x, y, left=np.nan, right=np.nan))
    return np.array(curves)


def _value(row, column):
    """Eigenvalues and what is made of them in lg, the index as it is."""
    if column == "condition":
        return np.log10(row["max_abs"]) - np.log10(max(row["p10_abs"], row["max_abs"] * 1e-16))
    if column in ("max_abs", "p10_abs"):
        return np.log10(max(row[column], 1e-300))
    return row[column]
