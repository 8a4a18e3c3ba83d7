"""Gradient descent of residual networks and of the standard parameterisation, and the certificate (2.3) on its path."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from idmatters_tf import linear
from trainers.experiments.panels import add_legend, by_columns, line, sample_of
from trainers.experiments.registry import Counter, Experiment, ProgressCallback, Scalars, silent
from trainers.landscape.panels import color_by_depth, panels_by_target
from trainers.landscape.settings import Settings
from trainers.landscape.targets import Targets, TargetsByName, learning_rate

SMALL_START = 1e-3


@dataclasses.dataclass(frozen=True)
class DescentRow:
    """One record of one network's descent.

    Attributes:
        target: its name.
        depth: l.
        network: "residual from zero", or "residual" and "standard", which share a small random start.
        step: updates so far.
        risk: f - C.
        gradient: the squared Frobenius norm of the gradient of f.
        bound, per_layer_bound: what (2.3) guarantees of it, uniformly and layer by layer; None where it promises
            nothing.
        tau: |||A|||; in the standard parameterisation of A_i = W_i - I, which starts outside the ball.
        inside: whether tau < 1.
    """

    target: str
    depth: int
    network: str
    step: int
    risk: float
    gradient: float
    bound: float | None
    per_layer_bound: float | None
    tau: float
    inside: bool


def measure(
    targets: TargetsByName,
    depths: Sequence[int],
    steps: int,
    record_every: int,
    progress: ProgressCallback = silent,
) -> list[DescentRow]:
    """Residual networks from zero, and both parameterisations from the same small start.

    Args:
        targets: by name, (d, d).
        depths: of the networks.
        steps, record_every: of gradient descent.
        progress: is told of each piece of work done.
    """
    rows, counter = [], Counter(progress, "descent", 3 * len(targets) * len(depths))
    for name, R in targets.items():
        d = len(R)
        for depth in depths:
            small = SMALL_START * linear.initial_weights("xavier", depth, 1, d)
            for network, start, shortcut in (
                ("residual from zero", np.zeros_like(small), True),
                ("residual", small, True),
                ("standard", small, False),
            ):
                found = linear.gradient_descent(
                    start[None], np.eye(d), R, learning_rate(R, depth), steps, shortcut, record_every=record_every
                )
                rows += _rows(name, depth, network, found, shortcut)
                counter.advance()
    return rows


def _rows(target: str, depth: int, network: str, found: linear.Trajectories, shortcut: bool) -> Iterator[DescentRow]:
    for k, step in enumerate(found.steps):
        risk, inside = 2 * found.excess_risk[0, k], bool(found.inside[0, k])
        bound = per_layer_bound = None
        if inside and shortcut:
            factors = linear.dominance_factors(found.layer_norms[0, k].ravel())
            bound, per_layer_bound = (float(factor) * risk for factor in factors)
        yield DescentRow(
            target=target,
            depth=depth,
            network=network,
            step=int(step),
            risk=risk,
            # The descent is on L = f / 2.
            gradient=4 * found.gradient_norm[0, k] ** 2,
            bound=bound,
            per_layer_bound=per_layer_bound,
            tau=found.tau[0, k],
            inside=inside,
        )


def draw(rows: Sequence[DescentRow]) -> Figure:
    """The risk against steps, a panel for each of the first six targets."""
    figure = panels_by_target(rows, _panel, "risk f - C", most=6, lowest=1e-12)
    handles = [sample_of(f"depth {depth}", color=color) for depth, color in color_by_depth(rows).items()]
    handles += [sample_of(network, **style) for network, style in STYLES.items()]
    handles.append(sample_of("leaves the ball", linestyle="", marker="x"))
    add_legend(figure, handles, columns=5)
    return figure


# The second would hide the first, were it not wide and faint.
STYLES = {
    "residual from zero": {"linestyle": "-"},
    "residual": {"linestyle": "--", "linewidth": 4, "alpha": 0.35},
    "standard": {"linestyle": ":"},
}


def _panel(axes: Axes, rows: Sequence[DescentRow]) -> None:
    colors = color_by_depth(rows)
    for (depth, network), run in by_columns(rows, "depth", "network").items():
        line(axes, run, "step", "risk", color=colors[depth], **STYLES[network])
        left = next((row for row in run if not row.inside), None)
        if network == "residual from zero" and left is not None:
            axes.plot(left.step, left.risk, "x", color=colors[depth], markersize=9)
    axes.set_xlabel("step", fontsize=9)


def draw_certificate(rows: Sequence[DescentRow]) -> Figure:
    """The squared gradient along the path from zero and its lower bounds, for each of the first four targets."""
    figure = panels_by_target(
        rows, _certificate_panel, "squared gradient of f, and what is guaranteed", most=4, lowest=1e-14
    )
    colors = color_by_depth(rows)
    handles = [sample_of(f"depth {depth}", color=colors[depth]) for depth in _few(colors)]
    handles += [
        sample_of("squared gradient"),
        sample_of("per-layer bound, inside the ball", linestyle="--"),
        sample_of("bound (2.3), inside the ball", linestyle=":"),
    ]
    add_legend(figure, handles, columns=3)
    return figure


def _few(depths: Iterable[int]) -> list[int]:
    """Three depths are enough for one panel."""
    ordered = sorted(depths)
    return ordered[:: max(1, (len(ordered) - 1) // 2)]


def _certificate_panel(axes: Axes, rows: Sequence[DescentRow]) -> None:
    colors = color_by_depth(rows)
    runs = by_columns(rows, "depth", "network")
    for depth in _few(colors):
        run = runs[depth, "residual from zero"]
        line(axes, run, "step", "gradient", color=colors[depth])
        line(axes, run, "step", "per_layer_bound", color=colors[depth], linestyle="--")
        line(axes, run, "step", "bound", color=colors[depth], linestyle=":")
    axes.set_xlabel("step", fontsize=9)


def _scalars(rows: Sequence[DescentRow]) -> Iterator[Scalars]:
    for row in rows:
        values = {f"descent risk/{row.target}": row.risk, f"descent tau/{row.target}": row.tau}
        values[f"descent squared gradient/{row.target}"] = row.gradient
        yield Scalars(f"descent, {row.network}, depth {row.depth}", row.step, values)


def _run(targets: Targets, settings: Settings, progress: ProgressCallback) -> list[DescentRow]:
    networks = settings.networks
    return measure(targets.both, networks.depths, networks.steps, networks.record_every, progress)


EXPERIMENT = Experiment(
    "descent", DescentRow, _run, {"descent": draw, "certificate": draw_certificate}, scalars=_scalars
)
