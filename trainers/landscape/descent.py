"""Gradient descent: residual and standard parameterizations, and the lower bound (2.3)."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.panels import line, make_legend_entry, panel_for_each
from trainers.experiments.program import Results, group_by

SMALL_START = 1e-3
# In units of the inverse of the largest curvature at the optimum of smallest norm: stable, and close to the fastest
# rate.
RATE = 0.3
# The second curve is wide and faint because it would hide the first one.
STYLES = {
    "residual from zero": {"linestyle": "-"},
    "residual": {"linestyle": "--", "linewidth": 4, "alpha": 0.35},
    "standard": {"linestyle": ":"},
}
# Columns of the figure of the certificate.
CERTIFICATE = {
    "gradient": {"label": "squared gradient"},
    "per_layer_bound": {"label": "per-layer bound, inside the ball", "linestyle": "--"},
    "bound": {"label": "bound (2.3), inside the ball", "linestyle": ":"},
}


@dataclasses.dataclass(frozen=True)
class DescentRow:
    """One record of one network's descent."""

    target: str
    depth: int
    network: str  # "residual from zero", or "residual" and "standard", which share a small random start
    step: int
    risk: float  # f - C
    gradient: float  # squared Frobenius norm of the gradient of f
    bound: float | None  # uniform lower bound (2.3) of the squared gradient; None if there is no guarantee
    per_layer_bound: float | None  # lower bound (2.3) from the norm of each layer; None if there is no guarantee
    tau: float  # |||A|||; in the standard parameterization of A_i = W_i - I, which starts outside the ball
    inside: bool  # True if tau < 1


def run(results: Results, targets: Mapping[str, NDArray[np.float64]], depths: Sequence[int], steps: int) -> None:
    """Train each network for each target at each depth, with about 50 records."""
    cases = [
        (*item, depth, network, steps, max(1, steps // 50))
        for item in targets.items()
        for depth in depths
        for network in STYLES
    ]
    results.report("descent", measure, cases, {"descent": draw, "certificate": draw_certificate})


def measure(
    name: str, R: NDArray[np.float64], depth: int, network: str, steps: int, record_every: int
) -> Iterator[DescentRow]:
    """Train a residual network from zero, or one of the two parameterizations from the same small start."""
    shortcut = network != "standard"
    start = SMALL_START * linear.initial_weights("xavier", depth, 1, len(R)) * (network != "residual from zero")
    # The curvature of L = f / 2 at a balanced optimum is at most about depth * sigma_max(R)^2.
    rate = RATE / (depth * max(float(np.linalg.norm(R, 2)), 1.0) ** 2)
    history = linear.gradient_descent(
        start[None], np.eye(len(R)), R, rate, steps, shortcut=shortcut, record_every=record_every
    )
    for k, step in enumerate(history.steps):
        risk, inside = 2 * history.excess_risk[0, k], bool(history.inside[0, k])
        bound = per_layer_bound = None
        if inside and shortcut:
            factors = linear.dominance_factors(history.layer_norms[0, k].ravel())
            bound, per_layer_bound = (float(factor) * risk for factor in factors)
        # Descent minimizes L = f / 2.
        gradient = 4 * history.gradient_norm[0, k] ** 2
        measured = risk, gradient, bound, per_layer_bound, history.tau[0, k], inside
        yield DescentRow(name, depth, network, int(step), *measured)


def draw(rows: Sequence[DescentRow]) -> Figure:
    """Draw the risk against steps, with a panel for each of the first six targets."""
    colors = _color_by_depth(rows)
    handles = [make_legend_entry(f"depth {depth}", color=color) for depth, color in colors.items()]
    handles += [make_legend_entry(network, **style) for network, style in STYLES.items()]
    handles.append(make_legend_entry("leaves the ball", linestyle="", marker="x"))
    panel = functools.partial(_panel, colors)
    return panel_for_each(rows, "target", panel, label="risk f - C", most=6, lowest=1e-12, handles=handles)


def _color_by_depth(rows: Sequence[DescentRow]) -> dict[int, str]:
    return {depth: f"C{number}" for number, depth in enumerate(sorted({row.depth for row in rows}))}


def _panel(colors: Mapping[int, str], axes: Axes, rows: Sequence[DescentRow]) -> None:
    for (depth, network), run in group_by(rows, "depth", "network").items():
        line(axes, run, "step", "risk", color=colors[depth], **STYLES[network])
        left = next((row for row in run if not row.inside), None)
        if network == "residual from zero" and left is not None:
            axes.plot(left.step, left.risk, "x", color=colors[depth], markersize=9)
    axes.set_xlabel("step")


def draw_certificate(rows: Sequence[DescentRow]) -> Figure:
    """Draw the squared gradient along the path from zero and its lower bounds, for every other depth."""
    colors = dict(list(_color_by_depth(rows).items())[::2])
    handles = [make_legend_entry(f"depth {depth}", color=color) for depth, color in colors.items()]
    handles += [make_legend_entry(**style) for style in CERTIFICATE.values()]
    panel = functools.partial(_certificate_panel, colors)
    label = "squared gradient of f, and lower bounds"
    return panel_for_each(rows, "target", panel, label=label, most=4, lowest=1e-14, handles=handles)


def _certificate_panel(colors: Mapping[int, str], axes: Axes, rows: Sequence[DescentRow]) -> None:
    for (depth, network), run in group_by(rows, "depth", "network").items():
        if depth in colors and network == "residual from zero":
            for column, style in CERTIFICATE.items():
                line(axes, run, "step", column, **style, color=colors[depth])
    axes.set_xlabel("step")
