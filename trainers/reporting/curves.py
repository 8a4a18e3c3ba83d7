"""Line charts as inline SVG: several runs on the same axes."""

import html
import math
from collections.abc import Iterator, Mapping, Sequence

Point = tuple[float, float]

# As matplotlib's cycle, which the other figures have.
COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
DASHES = ("none", "6 3", "2 2")
WIDTH, HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 24, 26, 38
# More points than pixels show nothing more.
MOST_POINTS = 600
# Larger values are left out and smaller ones are 0: the axes compute with squares and quotients of them.
_LARGEST, _SMALLEST = 1e150, 1e-150
# From this ratio of the largest to the smallest value on, the vertical axis is logarithmic.
_LOGARITHMIC_FROM = 50.0


def style(number: int) -> str:
    """The color and dashes of the n-th run, as attributes of a line."""
    return f'stroke="{COLORS[number % len(COLORS)]}" stroke-dasharray="{DASHES[number // len(COLORS) % len(DASHES)]}"'


def chart(
    title: str,
    curves: Mapping[str, Sequence[Point]],
    numbers: Mapping[str, int],
    logarithmic: bool = False,
    x_label: str = "step",
) -> str:
    """An SVG element with a curve for each run; a single point is a dot.

    Args:
        title: above the chart.
        curves: by the run's name, points (x, y) by ascending x; those that are not finite or beyond 1e150 are left out.
        numbers: by the run's name, which color it has, see `style`.
        logarithmic: whether the vertical axis may be, where the values span orders of magnitude.
        x_label: below the horizontal axis.

    Returns:
        The element; empty where there is nothing to draw.
    """
    finite = {name: list(_drawable(points)) for name, points in curves.items()}
    finite = {name: _thinned(points) for name, points in finite.items() if points}
    if not finite:
        return ""
    values = [y for points in finite.values() for _, y in points]
    logarithmic = logarithmic and min(values) > 0 and max(values) / min(values) > _LOGARITHMIC_FROM
    xs = [x for points in finite.values() for x, _ in points]
    x_axis = _Axis(min(0.0, *xs), max(xs), _LEFT, WIDTH - _RIGHT)
    low = math.log10(min(values)) if logarithmic else min(0.0, *values)
    high = math.log10(max(values)) if logarithmic else max(values)
    y_axis = _Axis(low, high, HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">',
        f'<text x="{_LEFT}" y="16" class="title">{html.escape(title)}</text>',
        f'<text x="{(WIDTH + _LEFT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{html.escape(x_label)}</text>',
    ]
    for tick in x_axis.ticks():
        x = x_axis(tick)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}" class="grid"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 14}" text-anchor="middle">{tick:,.6g}</text>')
    for tick in _decades(low, high) if logarithmic else y_axis.ticks():
        y = y_axis(tick)
        parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        shown = 10**tick if logarithmic else tick
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{shown:.3g}</text>')
    for name, points in finite.items():
        places = [(x_axis(x), y_axis(math.log10(y) if logarithmic else y)) for x, y in points]
        last = f"{html.escape(name)}: {points[-1][1]:.4g} at {points[-1][0]:,.6g}"
        if len(places) == 1:
            (x, y), color = places[0], COLORS[numbers[name] % len(COLORS)]
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"><title>{last}</title></circle>')
        else:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(
                f'<polyline points="{line}" fill="none" {style(numbers[name])}><title>{last}</title></polyline>'
            )
    return "\n".join([*parts, "</svg>"])


def _drawable(points: Sequence[Point]) -> Iterator[Point]:
    for x, y in points:
        # Neither holds for NaN.
        if abs(x) <= _LARGEST and abs(y) <= _LARGEST:
            yield x, y if abs(y) >= _SMALLEST else 0.0


class _Axis:
    """From values to pixels, with round ticks."""

    def __init__(self, low: float, high: float, first: float, last: float):
        # An axis needs a length.
        self.low, self.high = low, high if high > low else low + (abs(low) or 1.0)
        self.first, self.last = first, last

    def __call__(self, value: float) -> float:
        return self.first + (value - self.low) / (self.high - self.low) * (self.last - self.first)

    def ticks(self, count: int = 5) -> list[float]:
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [step * number for number in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    """The logarithms of 1, 10, 100 and so on between two logarithms; of 2, 5, 20, 50 as well where there is room."""
    factors = (1, 2, 5) if high - low < 2.5 else (1,)
    places = range(math.floor(low), math.ceil(high) + 1)
    ticks = [place + math.log10(factor) for place in places for factor in factors]
    return [tick for tick in ticks if low - 1e-9 <= tick <= high + 1e-9]


def _thinned(points: Sequence[Point]) -> list[Point]:
    """At most `MOST_POINTS` of them, evenly spread, the last among them."""
    every = -(-len(points) // MOST_POINTS)
    kept = list(points[::every])
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]
