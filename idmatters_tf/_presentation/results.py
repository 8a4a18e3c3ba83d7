"""Presentation of results: short representations, tables and figures."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from idmatters_tf._imports import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:
    # Matplotlib is imported when a figure is drawn.
    Axes = Figure = Any


def tabulate(header: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as text, with numbers to the right and in four significant digits."""
    lines = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in [header, *rows]]
    signs = [">" if isinstance(cell, (int, float)) else "<" for cell in (rows[0] if rows else header)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    columns = list(zip(signs, widths, strict=True))
    return "\n".join(
        "  ".join(f"{cell:{sign}{width}}" for cell, (sign, width) in zip(line, columns, strict=True)).rstrip()
        for line in lines
    )


class Result:
    """Base class of dataclasses of results, with a short representation."""

    def __repr__(self) -> str:
        fields: Any = dataclasses.fields(self)  # pyright: ignore[reportArgumentType]
        parts = (f"{field.name}={_abbreviate(getattr(self, field.name))}" for field in fields)
        return f"{type(self).__name__}({', '.join(parts)})"


class Drawing:
    """Base class of results that can be drawn. `size` is the width and height of the figure in inches."""

    size: ClassVar[tuple[float, float]] = (6.4, 4.0)

    def draw(self, figure: Figure) -> None:
        """Draw the result on an empty figure of matplotlib."""
        raise NotImplementedError

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the result and save it to a file, such as "figure.png" or "figure.pdf"."""
        figure = _new_figure(self.size, 150)
        self.draw(figure)
        figure.savefig(path)

    def image(self) -> NDArray[np.uint8]:
        """Draw the result as an RGBA image, (rows, columns, 4)."""
        figure = _new_figure(self.size, 80)
        self.draw(figure)
        canvas: Any = figure.canvas
        canvas.draw()
        return np.array(canvas.buffer_rgba())


def _new_figure(size: tuple[float, float], dpi: int) -> Figure:
    require("matplotlib")
    # pyplot is not imported, so that a notebook keeps its Matplotlib backend.
    from matplotlib import figure as figures
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = figures.Figure(figsize=size, dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _abbreviate(value: object, most: int = 4) -> str:
    """Return a representation of a value without the entries of large arrays and containers."""
    if isinstance(value, np.ndarray):
        shown = np.array2string(value, precision=4, separator=", ")
        return shown if value.size <= most else f"<{value.dtype} {value.shape}>"
    if isinstance(value, (Mapping, tuple)) and len(value) > most:
        return f"<{len(value)} entries>"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_abbreviate(entry)}' for key, entry in value.items())}}}"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)
