"""Gradient descent: residual and standard parameterizations, and the lower bound (2.3)."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.experiment import Cases, Experiment, by_columns
from trainers.experiments.panels import line, make_legend_entry, panel_for_each
from trainers.landscape.targets import Targets, learning_rate

if TYPE_CHECKING:
    from trainers.landscape.settings import Settings

SMALL_START = 1e-3
# The second curve is wide and faint because it would hide the first one.
STYLES = {
    "residual from zero": {"linestyle": "-"},
    "residual": {"linestyle": "--", "linewidth": 4, "alpha": 0.35},
    "standard": {"linestyle": ":"},
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


def cases(targets: Targets, settings: "Settings") -> Cases:
    """Yield the arguments of `measure` for each target, depth and network."""
    networks = settings.networks
    for name, R in targets.maps.items():
        for depth in networks.depths:
            for network in STYLES:
                yield name, R, depth, network, networks.steps, networks.record_every


def measure(
    name: str, R: NDArray[np.float64], depth: int, network: str, steps: int, record_every: int
) -> Iterator[DescentRow]:
    """Train a residual network from zero, or one of the two parameterizations from the same small start."""
    d, shortcut = len(R), network != "standard"
    start = SMALL_START * linear.initial_weights("xavier", depth, 1, d)
    if network == "residual from zero":
        start = np.zeros_like(start)
    history = linear.gradient_descent(
        start[None], np.eye(d), R, learning_rate(R, depth), steps, shortcut=shortcut, record_every=record_every
    )
    for k, step in enumerate(history.steps):
        risk, inside = 2 * history.excess_risk[0, k], bool(history.inside[0, k])
        bound = per_layer_bound = None
        if inside and shortcut:
            factors = linear.dominance_factors(history.layer_norms[0, k].ravel())
            bound, per_layer_bound = (float(factor) * risk for factor in factors)
        yield DescentRow(
            target=name,
            depth=depth,
            network=network,
            step=int(step),
            risk=risk,
            # Descent minimizes L = f / 2.
            gradient=4 * history.gradient_norm[0, k] ** 2,
            bound=bound,
            per_layer_bound=per_layer_bound,
            tau=history.tau[0, k],
            inside=inside,
        )


def draw(rows: Sequence[DescentRow]) -> Figure:
    """Draw the risk against steps, with a panel for each of the first six targets."""
    handles = [make_legend_entry(f"depth {depth}", color=color) for depth, color in _color_by_depth(rows).items()]
    handles += [make_legend_entry(network, **style) for network, style in STYLES.items()]
    handles.append(make_legend_entry("leaves the ball", linestyle="", marker="x"))
    label = "risk f - C"
    return panel_for_each(rows, "target", _panel, label, most=6, lowest=1e-12, handles=handles)


def _color_by_depth(rows: Sequence[DescentRow]) -> dict[int, str]:
    return {depth: f"C{number}" for number, depth in enumerate(sorted({row.depth for row in rows}))}


def _panel(axes: Axes, rows: Sequence[DescentRow]) -> None:
    colors = _color_by_depth(rows)
    for (depth, network), run in by_columns(rows, "depth", "network").items():
        line(axes, run, "step", "risk", color=colors[depth], **STYLES[network])
        left = next((row for row in run if not row.inside), None)
        if network == "residual from zero" and left is not None:
            axes.plot(left.step, left.risk, "x", color=colors[depth], markersize=9)
    axes.set_xlabel("step")


def draw_certificate(rows: Sequence[DescentRow]) -> Figure:
    """Draw the squared gradient along the path from zero and its lower bounds, for every other depth."""
    colors = _color_by_depth(rows)
    handles = [make_legend_entry(f"depth {depth}", color=colors[depth]) for depth in list(colors)[::2]]
    handles += [
        make_legend_entry("squared gradient"),
        make_legend_entry("per-layer bound, inside the ball", linestyle="--"),
        make_legend_entry("bound (2.3), inside the ball", linestyle=":"),
    ]
    label = "squared gradient of f, and lower bounds"
    return panel_for_each(rows, "target", _certificate_panel, label, most=4, lowest=1e-14, handles=handles)


def _certificate_panel(axes: Axes, rows: Sequence[DescentRow]) -> None:
    colors = _color_by_depth(rows)
    runs = by_columns(rows, "depth", "network")
    for depth in list(colors)[::2]:
        run = runs[depth, "residual from zero"]
        line(axes, run, "step", "gradient", color=colors[depth])
        line(axes, run, "step", "per_layer_bound", color=colors[depth], linestyle="--")
        line(axes, run, "step", "bound", color=colors[depth], linestyle=":")
    axes.set_xlabel("step")


EXPERIMENT = Experiment("descent", cases, measure, {"descent": draw, "certificate": draw_certificate})
