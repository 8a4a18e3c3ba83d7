"""Colors and depth axes of the figures of `trainers.shortcuts`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

COLORS = {
    "xavier": "tab:green",
    "orthogonal": "tab:orange",
    "1-shortcut": "tab:red",
    "2-shortcut": "tab:blue",
    "3-shortcut": "tab:purple",
}


def shift_depths(depths: Sequence[int], kind: str) -> NDArray[np.float64]:
    """Return depths shifted slightly, by a different amount for each kind of network."""
    return np.array(depths, float) * 1.03 ** (list(COLORS).index(kind) - 2)


def mark_depths(axes: Axes, rows: Sequence[Any]) -> None:
    """Label the horizontal axis with depths and explain missing points."""
    depths = sorted({row.depth for row in rows})
    axes.set_xscale("log")
    axes.set_xticks(depths, list(map(str, depths)))
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes.set_xlabel("depth, layers (n-shortcuts: multiples of n)")
