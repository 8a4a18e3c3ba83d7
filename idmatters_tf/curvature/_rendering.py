"""Rendering of figures to arrays of pixels, for TensorBoard and notebooks."""

import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "tuple[Figure, Axes]":
    """Return a figure with the given size in inches, and its axes.

    pyplot is not imported, so that a notebook keeps its Matplotlib backend.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def render(figure: "Figure", dpi: int) -> NDArray[np.uint8]:
    """Return a figure as an RGBA image.

    Args:
        figure: the figure.
        dpi: pixels per inch.

    Returns:
        Array of uint8, (rows, columns, 4).
    """
    import matplotlib.image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    buffer.seek(0)
    return (matplotlib.image.imread(buffer) * 255).round().astype(np.uint8)
