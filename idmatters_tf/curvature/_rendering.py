"""Rendering of figures to arrays of pixels, for TensorBoard and notebooks."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float, dpi: int) -> "tuple[Figure, Axes]":
    """Return a figure with the given size in inches and pixels per inch, and its axes.

    pyplot is not imported, so that a notebook keeps its Matplotlib backend.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def render(figure: "Figure") -> NDArray[np.uint8]:
    """Return a figure as an RGBA image of uint8, (rows, columns, 4)."""
    canvas: Any = figure.canvas
    canvas.draw()
    return np.array(canvas.buffer_rgba())
