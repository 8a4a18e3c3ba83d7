"""Line charts that compare runs, as inline SVG drawn by matplotlib."""

import html
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainers.run.figures import line_style, set_logarithmic

Point = tuple[float, float]

# Maximum number of points of a curve; more are not visible at this width.
MOST_POINTS = 600
# Length of a dash of equal curves, in line widths.
_STRIPE = 4.0
# Axes overflow beyond this value.
_LARGEST = 1e150
# Placeholder for the text color of the page, which depends on the reader's color scheme.
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
        curves: points (x, y) by ascending x, for each run name. Values that are not finite or beyond 1e150 are left
            out. A single point is drawn as a dot. Equal curves are drawn as one line with stripes in all their colors.
        numbers: number of each run by name, which determines its color and dashes.
        logarithmic: True for a logarithmic vertical axis. With negative values the axis is linear.
    """
    import matplotlib
    from matplotlib.figure import Figure

    # Both comparisons are false for NaN.
    drawable = {
        name: _thin_points([(float(x), float(y)) for x, y in points if abs(x) <= _LARGEST and abs(y) <= _LARGEST])
        for name, points in curves.items()
    }
    drawable = {name: points for name, points in drawable.items() if points}
    if not drawable:
        return ""
    values = [y for points in drawable.values() for _, y in points]
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(4.4, 2.7), layout="constrained")
        axes = figure.subplots()
        striped = {
            name: stripes(place, len(group)) for group in equal_curves(drawable) for place, name in enumerate(group)
        }
        for name, points in drawable.items():
            x, y = zip(*points, strict=True)
            color, dashes = line_style(numbers[name])
            marker = "o" if len(points) == 1 else None
            dashes = striped.get(name, dashes)
            axes.plot(x, y, color=color, linestyle=dashes, marker=marker, gid=_group(name, numbers))
        axes.set_xlim(left=min(0.0, *(x for points in drawable.values() for x, _ in points)))
        if logarithmic and min(values) >= 0:
            set_logarithmic(axes, values)
        elif min(values) >= 0:
            axes.set_ylim(bottom=0)
        axes.set_xlabel("step")
        axes.grid()
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata=_NO_METADATA)
    last = {name: f"{name}: {points[-1][1]:.4g} at {points[-1][0]:,.6g}" for name, points in drawable.items()}
    return _inline(stream.getvalue(), title, {_group(name, numbers): text for name, text in last.items()})


def stripes(place: int, count: int) -> tuple[float, tuple[float, float]]:
    """Return dashes that leave all of `count` lines visible where they are drawn on top of each other.

    Args:
        place: 0 to `count - 1`, place of the line among them.
        count: number of the lines, at least 2.
    """
    return (count - place) % count * _STRIPE, (_STRIPE, (count - 1) * _STRIPE)


def equal_curves(curves: Mapping[Any, Sequence[Any]]) -> list[list[Any]]:
    """Return the groups of keys, of two or more, whose curves have the same points."""
    groups: dict[tuple, list] = {}
    for key, points in curves.items():
        groups.setdefault(tuple(points), []).append(key)
    return [group for group in groups.values() if len(group) > 1]


def _group(name: str, numbers: Mapping[str, int]) -> str:
    """Return the id of a curve's group in the SVG."""
    return f"run-{numbers[name]}"


def _thin_points(points: Sequence[Point]) -> list[Point]:
    """Return at most `MOST_POINTS` evenly spaced points, and the last point."""
    every = max(1, -(-len(points) // MOST_POINTS))
    return [*points[:-1:every], *points[-1:]]


def _inline(svg: str, title: str, tooltips: Mapping[str, str]) -> str:
    """Return an SVG document written by matplotlib as an element for an HTML page.

    Args:
        svg: text of the document.
        title: description for screen readers.
        tooltips: tooltip of each group, by the id of the group.
    """
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    for group, text in tooltips.items():
        svg = svg.replace(f'<g id="{group}">', f"<g><title>{html.escape(text)}</title>")
    # Ids must be unique in the page, and all charts have the same ones.
    referenced = set(re.findall(r"#([\w-]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in referenced else "", svg)
    view = re.search(r'viewBox="[^"]*"', svg)
    return re.sub(
        "<svg[^>]*>", f'<svg {view[0] if view else ""} role="img" aria-label="{html.escape(title)}">', svg, count=1
    )
