"""Random starts of deep residual networks: change of a signal by depth, scale and correlation of the weights."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from idmatters_tf import linear
from idmatters_tf.linear import depth_limit
from trainers.experiments.panels import line, mark_sizes, panel_for_each
from trainers.experiments.program import Results, Verdict, group_by

# Kinds of starts with their parameters, and the exponents that are expected to be critical for one and two layers.
STARTS: dict[str, tuple[depth_limit.Kind, float, tuple[float, float]]] = {
    "independent": ("independent", 0.0, (0.5, 0.5)),
    "fractional, H = 1/5": ("fractional", 0.2, (0.2, 0.5)),
    "fractional, H = 4/5": ("fractional", 0.8, (0.8, 0.8)),
    "smooth": ("smooth", 0.1, (1.0, 1.0)),
    "equal": ("equal", 0.0, (1.0, 1.0)),
}
# Exponents of the scale L^-beta by name. Names of numbers in result.json have no dots.
EXPONENTS = {"L^-1/4": 0.25, "L^-1/2": 0.5, "L^-4/5": 0.8, "L^-1": 1.0}


@dataclasses.dataclass(frozen=True)
class StartRow:
    """Networks of one kind of start, depth and scale."""

    start: str
    layers: int
    depth: int
    beta: float
    median: float  # of ||h_L - h_0||^2 / ||h_0||^2
    lowest: float
    highest: float
    first_order: float  # expected change for small scales
    exact: float | None  # expected change, for independent weights and two layers


def measure(start: str, layers: int, depth: int, width: int, networks: int) -> Iterator[StartRow]:
    """Draw networks and propagate a signal."""
    kind, parameter, _ = STARTS[start]
    correlations = linear.depth_correlations(kind, depth, parameter)
    scales = [depth**-beta for beta in EXPONENTS.values()]
    changes = linear.signal_change(correlations, width, scales, layers=layers, networks=networks)
    for beta, scale, change in zip(EXPONENTS.values(), scales, changes, strict=True):
        yield StartRow(
            start,
            layers,
            depth,
            beta,
            float(np.median(change)),
            float(change.min()),
            float(change.max()),
            scale**2 * linear.first_order_change(correlations, layers),
            linear.expected_change(depth, scale) if kind == "independent" and layers == 2 else None,
        )


def verdicts(rows: Sequence[StartRow]) -> Iterator[Verdict]:
    """Compare the growth of the change between the two largest depths for each start."""
    for (start, layers), own in group_by(rows, "start", "layers").items():
        depths = sorted({row.depth for row in own})[-2:]
        if len(depths) < 2:
            continue
        critical = STARTS[start][2][layers - 1]
        growth = {}
        for name, beta in EXPONENTS.items():
            ends = [next(row.median for row in own if (row.depth, row.beta) == (depth, beta)) for depth in depths]
            growth[name] = float(np.log(ends[1] / ends[0]) / np.log(depths[1] / depths[0]))
        above = [growth[name] for name, beta in EXPONENTS.items() if beta > critical + 0.1]
        below = [growth[name] for name, beta in EXPONENTS.items() if beta < critical - 0.1]
        words = "one layer" if layers == 1 else "two layers"
        claim = f"{start}, {words}: the change vanishes for L^-beta with beta above {critical:g} and explodes below"
        yield Verdict(f"{start}, {words}", all(v < -0.1 for v in above) and all(v > 0.2 for v in below), claim, growth)


def draw(rows: Sequence[StartRow]) -> Figure:
    """Draw the median change against depth, with a panel for each start of two layers."""
    return panel_for_each(
        [row for row in rows if row.layers == 2], "start", _panel, label="‖h_L - h_0‖² / ‖h_0‖²", lowest=1e-4
    )


def _panel(axes: Axes, rows: Sequence[StartRow]) -> None:
    for number, (beta, own) in enumerate(group_by(rows, "beta").items()):
        line(axes, own, "depth", "median", color=f"C{number}", label=f"L^-{beta:g}")
    mark_sizes(axes, rows, "depth")
    axes.set_ylim(top=1e4)


def run(results: Results, depths: Sequence[int], width: int, networks: int) -> None:
    """Measure all starts for one and two layers."""
    cases = [(start, layers, depth, width, networks) for start in STARTS for layers in (1, 2) for depth in depths]
    results.report("starts", measure, cases, {"starts": draw}, verdicts)
