"""Line charts of several runs as inline SVG, drawn by matplotlib."""

import html
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainers.run.figures import line_style

Point = tuple[float, float]

# More points do not show more at this width.
MOST_POINTS = 600
# Axes overflow beyond this value.
_LARGEST = 1e150
# From this ratio of the largest to the smallest value on, the vertical axis is logarithmic.
_LOGARITHMIC_FROM = 50.0
# Stands for the color of the page's text, which depends on the reader's color scheme.
_INK = "#010203"
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "idmatters_tf",
    "font.size": 9,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
    "grid.color": _INK,
    "grid.alpha": 0.15,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def chart(
    title: str, curves: Mapping[str, Sequence[Point]], numbers: Mapping[str, int], logarithmic: bool = False
) -> str:
    """Return an SVG element with a curve for each run, or an empty string if there is nothing to draw.

    Args:
        title: description of the chart for screen readers.
        curves: points (x, y) by ascending x, by the run's name. Points that are not finite or beyond 1e150 are left
            out; a single point is drawn as a dot.
        numbers: number of each run, by name, which determines its color and dashes.
        logarithmic: True if the vertical axis may be logarithmic where the values span orders of magnitude.
    """
    import matplotlib
    from matplotlib.figure import Figure

    # Neither comparison holds for NaN.
    drawable = {
        name: _thinned([(float(x), float(y)) for x, y in points if abs(x) <= _LARGEST and abs(y) <= _LARGEST])
        for name, points in curves.items()
    }
    drawable = {name: points for name, points in drawable.items() if points}
    if not drawable:
        return ""
    values = [y for points in drawable.values() for _, y in points]
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(5.6, 3), layout="constrained")
        axes = figure.subplots()
        for name, points in drawable.items():
            x, y = zip(*points, strict=True)
            color, dashes = line_style(numbers[name])
            marker = "o" if len(points) == 1 else None
            axes.plot(x, y, color=color, linestyle=dashes, marker=marker, gid=_group(name, numbers))
        axes.set_xlim(left=min(0.0, *(x for points in drawable.values() for x, _ in points)))
        if logarithmic and min(values) > 0 and max(values) / min(values) > _LOGARITHMIC_FROM:
            axes.set_yscale("log")
            # The default labels are formulas, which the SVG would contain as shapes.
            axes.yaxis.set_major_formatter("{x:g}")
        elif min(values) >= 0:
            axes.set_ylim(bottom=0)
        axes.set_xlabel("step")
        axes.grid()
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata=_NO_METADATA)
    last = {name: f"{name}: {points[-1][1]:.4g} at {points[-1][0]:,.6g}" for name, points in drawable.items()}
    return _inline(stream.getvalue(), title, {_group(name, numbers): text for name, text in last.items()})


def _group(name: str, numbers: Mapping[str, int]) -> str:
    """Return the id of a curve's group in the SVG."""
    return f"run-{numbers[name]}"


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most `MOST_POINTS` of the points, evenly spread, and the last one."""
    every = max(1, -(-len(points) // MOST_POINTS))
    return [*points[:-1:every], *points[-1:]]


def _inline(svg: str, title: str, tooltips: Mapping[str, str]) -> str:
    """Return an SVG document of matplotlib as an element of a page.

    Args:
        svg: the document.
        title: description for screen readers.
        tooltips: text shown when the pointer is on a group, by the group's id.
    """
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    for group, text in tooltips.items():
        svg = svg.replace(f'<g id="{group}">', f"<g><title>{html.escape(text)}</title>")
    # Other charts of the page have groups of the same names.
    referenced = set(re.findall(r"#([\w-]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in referenced else "", svg)
    view = re.search(r'viewBox="[^"]*"', svg)
    return re.sub(
        "<svg[^>]*>", f'<svg {view[0] if view else ""} role="img" aria-label="{html.escape(title)}">', svg, count=1
    )
