"""Figures as arrays of pixels, for TensorBoard and notebooks."""

import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "tuple[Figure, Axes]":
    """A figure of so many inches, and its axes. Without pyplot, a notebook keeps the backend chosen there."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def pixels(figure: "Figure", dpi: int) -> NDArray[np.uint8]:
    """The figure as an image.

    Args:
        figure: the figure.
        dpi: pixels per inch.

    Returns:
        uint8, (rows, columns, 4).
    """
    import matplotlib.image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    buffer.seek(0)
    return (matplotlib.image.imread(buffer) * 255).round().astype(np.uint8)
