"""Gradient descent and gradient flow from the same start: conserved quantities, sharpness and distance."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.experiment import Cases, Experiment, Scalars, Verdict, by_column
from trainers.experiments.panels import add_legend, line, make_legend_entry, panels
from trainers.landscape.settings import Settings
from trainers.landscape.targets import Targets, learning_rate

# Multiples of `learning_rate`, from far below the stability limit at the optimum to above it.
FACTORS = (0.25, 1.0, 4.0, 8.0)
# Tolerance for the change of the flow's matrices W_(j+1)^T W_(j+1) - W_j W_j^T, the error of the solver.
CONSERVED = 1e-8
START = 0.2
# Number of records of each trajectory, each with the largest eigenvalue of a Hessian.
RECORDS = 40


@dataclasses.dataclass(frozen=True)
class FlowRow:
    """One record of a descent and of the flow at the same time.

    Attributes:
        target: name of the target.
        depth: l.
        rate: learning rate of descent.
        factor: learning rate in units of `targets.learning_rate`.
        step: updates so far.
        time: step * rate.
        descent_risk, flow_risk: f - C of descent and flow.
        distance: Frobenius norm of the difference of the weights, relative to the distance of the flow from the start;
            None at the start.
        flow_drift: change of the conserved quantities of the flow.
        sharpness: largest eigenvalue of the Hessian of L on the path of descent.
        limit: 2 / rate, the largest sharpness at which descent is stable.
    """

    target: str
    depth: int
    rate: float
    factor: float
    step: int
    time: float
    descent_risk: float
    flow_risk: float
    distance: float | None
    flow_drift: float
    sharpness: float
    limit: float


def cases(targets: Targets, settings: Settings) -> Cases:
    """Yield the arguments of `measure` for the first target of each sign and each rate.

    The networks have the smallest depth, because each record requires the eigenvalues of a Hessian.
    """
    depth, steps = min(settings.networks.depths), max(1, settings.networks.steps // 2)
    for chosen in (targets.positive, targets.negative):
        for name, R in list(chosen.items())[:1]:
            for factor in FACTORS:
                yield name, R, depth, factor, steps


def measure(name: str, R: NDArray[np.float64], depth: int, factor: float, steps: int) -> Iterator[FlowRow]:
    """Run descent with one rate and the flow until the same time.

    Args:
        name: name of the target.
        R: (d, d).
        depth: layers.
        factor: learning rate in units of `targets.learning_rate`.
        steps: steps of descent for the factor 1; other rates take the number of steps for the same time.
    """
    start = START * linear.initial_weights("xavier", depth, 1, len(R), seed=4)
    moments = np.eye(len(R)), R
    rate = factor * learning_rate(R, depth)
    record_every = max(1, round(steps / factor / RECORDS))
    found = linear.descent_against_flow(start, *moments, rate, record_every * RECORDS, record_every=record_every)
    flow = linear.gradient_flow(start, *moments, rate * found.steps)
    for k, step in enumerate(found.steps):
        yield FlowRow(
            target=name,
            depth=depth,
            rate=rate,
            factor=factor,
            step=int(step),
            time=float(rate * step),
            descent_risk=2 * float(found.descent_excess[k]),
            flow_risk=2 * float(found.flow_excess[k]),
            distance=float(found.distance[k] / found.scale[k]) if found.scale[k] else None,
            flow_drift=float(flow.balance_drift[k]),
            sharpness=float(found.sharpness[k]),
            limit=found.limit,
        )


def verdict(rows: Sequence[FlowRow]) -> Verdict:
    """Check that the flow conserves its invariants, and that descent follows it more closely at smaller rates."""
    if len({row.factor for row in rows if row.distance is not None}) < len({row.factor for row in rows}):
        return Verdict(None, "descent diverges in its first steps")
    drift = max(row.flow_drift for row in rows)
    largest = {
        factor: max(row.distance for row in chosen if row.distance is not None)
        for factor, chosen in by_column(rows, "factor").items()
    }
    distances = [largest[factor] for factor in sorted(largest)]
    numbers = ", ".join(f"{largest[factor]:.2g} at rate x {factor:g}" for factor in sorted(largest))
    return Verdict(
        drift < CONSERVED and distances == sorted(distances),
        f"the invariants of the flow change by at most {drift:.1e}; largest relative distance of descent: {numbers}",
    )


def draw(rows: Sequence[FlowRow]) -> Figure:
    """Draw risk, distance from the flow, sharpness and drift against time for the first target."""
    chosen = next(iter(by_column(rows, "target").values()))
    figure, axes = panels(4)
    runs = by_column(chosen, "factor")
    colors = {factor: f"C{number}" for number, factor in enumerate(runs)}
    for factor, run in runs.items():
        _draw_run(axes, run, colors[factor])
    longest = max(runs.values(), key=lambda run: run[-1].time)
    line(axes[0], longest, "time", "flow_risk", color="black", linewidth=3, alpha=0.3)
    axes[0].set_ylim(bottom=1e-12)
    for each, title in zip(
        axes,
        ("risk f - C", "relative distance from the flow", "sharpness / (2 / rate)", "drift of the flow's invariants"),
        strict=True,
    ):
        each.set(title=title, yscale="log", xlabel="time, step x rate")
    axes[2].axhline(1.0, color="black", linestyle=":", linewidth=1)
    handles = [make_legend_entry(f"descent, rate x {factor:g}", color=color) for factor, color in colors.items()]
    handles.append(make_legend_entry("flow", color="black", linewidth=3, alpha=0.3))
    add_legend(figure, handles, columns=5)
    figure.suptitle(f"{chosen[0].target}, depth {chosen[0].depth}")
    return figure


def _draw_run(axes: Sequence[Axes], run: Sequence[FlowRow], color: str) -> None:
    times = [row.time for row in run]
    line(axes[0], run, "time", "descent_risk", color=color)
    line(axes[1], run, "time", "distance", color=color)
    axes[2].plot(times, [row.sharpness / row.limit for row in run], color=color)
    axes[3].plot(times, [max(row.flow_drift, 1e-17) for row in run], color=color)


def _scalars(row: FlowRow) -> Scalars:
    values = {f"flow risk/{row.target}": row.descent_risk}
    values[f"flow sharpness over limit/{row.target}"] = row.sharpness / row.limit
    return Scalars(f"flow, rate x {row.factor:g}", row.step, values)


EXPERIMENT = Experiment("flow", cases, measure, {"flow": draw}, verdict, scalars=_scalars)
