"""What the figures of `trainers.shortcuts` have in common."""

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


def shifted(depths: Sequence[int], kind: str) -> NDArray[np.float64]:
    """Depths moved a little to the side, differently for each kind of network, so that no curve hides another."""
    return np.array(depths) * 1.03 ** (list(COLORS).index(kind) - 2)


def mark_depths(axes: Axes, rows: Sequence[Any]) -> None:
    """A logarithmic axis of depths, a tick at each, which says why some kinds of network are not at all of them."""
    depths = sorted({row.depth for row in rows})
    axes.set_xscale("log")
    axes.set_xticks(depths, list(map(str, depths)), fontsize=8)
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes.set_xlabel("depth, layers (n-shortcuts: where n divides it)", fontsize=9)
