"""Guarantees of convergence theorems along runs of gradient descent, compared with measurements."""

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.experiment import Cases, Experiment, Verdict, by_column, by_columns
from trainers.experiments.panels import add_legend, line, make_legend_entry, note, panel_for_each, panels
from trainers.landscape.settings import Settings
from trainers.landscape.targets import Targets, learning_rate

# Each run ends when the excess risk is this share of its initial value.
GOAL = 1e-4
# Ratio of successive steps at which certificates are computed.
SPACING = 1.2
# Factor on the largest rate that a theorem allows.
BELOW = 0.999

Floats = NDArray[np.float64]
COLORS = {
    "jacobians": "tab:blue",
    "dominance": "tab:green",
    "balanced": "tab:brown",
    "zero-asymmetric": "tab:orange",
    "positive definite": "tab:red",
}


@dataclasses.dataclass(frozen=True)
class CertifiedRow:
    """One theorem at one point of one run.

    Attributes:
        run: start and target.
        depth: l.
        rate: learning rate.
        step: updates so far.
        risk: f - C.
        theorem: see `linear.certificates`.
        scope: see `linear.certificates`.
        applies: True if the assumptions of the theorem hold at this point.
        reason: the first assumption that does not hold.
        promised: guaranteed share of the risk that the next step removes; None without a guarantee.
        measured: share that the next step removed.
        promised_steps: guaranteed number of steps from the start to a ten-thousandth of the risk; None for theorems
            about single steps, and without a guarantee.
        measured_steps: first step at this risk; None if it is not reached.
    """

    run: str
    depth: int
    rate: float
    step: int
    risk: float
    theorem: str
    scope: str
    applies: bool
    reason: str
    promised: float | None
    measured: float
    promised_steps: float | None
    measured_steps: int | None


def paths(R: Floats, depth: int, steps: int) -> list[tuple[str, Floats, Floats, float, int]]:
    """Return runs from the identity and from the zero-asymmetric start, with practical and theoretical rates.

    Args:
        R: target with positive determinant.
        depth: layers.
        steps: largest number of steps with a practical rate.

    Returns:
        The arguments of `measure` for each run.
    """
    d = len(R)
    identity = linear.initial_weights("zero", depth, 1, d)
    asymmetric = linear.initial_weights("zero-asymmetric", depth, 1, d, shortcut=True)
    values, vectors = np.linalg.eigh(R.T @ R)
    definite = vectors * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
    certified = linear.certificates(identity, np.eye(d), definite, 0.0)["positive definite"].largest_rate
    slow = linear.certificates(asymmetric, np.eye(d), R, 0.0)["zero-asymmetric"].largest_rate
    found = [
        ("identity start, positive definite target", identity, definite, BELOW * certified, steps),
        ("identity start, det > 0", identity, R, learning_rate(R, depth), steps),
        ("zero-asymmetric start, a rate of practice", asymmetric, R, learning_rate(R, depth), steps),
        ("zero-asymmetric start, the theorem's rate", asymmetric, R, BELOW * slow, 40 * steps),
    ]
    # Without the first run if rounding makes the positive definite factor of R singular.
    return [run for run in found if np.isfinite(run[3])]


def cases(targets: Targets, settings: Settings) -> Cases:
    """Yield each of `paths` for the first target with a positive determinant."""
    for R in list(targets.positive.values())[:1]:
        yield from paths(R, min(settings.networks.depths), settings.networks.steps)


def measure(name: str, W: Floats, R: Floats, rate: float, most_steps: int) -> Iterator[CertifiedRow]:
    """Compute certificates and contractions along a run.

    Args:
        name: start and target.
        W: start, (units, 1, d, d), with shortcuts.
        R: target.
        rate: learning rate.
        most_steps: largest number of steps.
    """
    moments = np.eye(len(R)), R
    step, reached, points = 0, None, []
    while True:
        risk = linear.excess_risk(W, *moments)
        if not risk:
            # At the optimum; for R = I this is the start.
            break
        ahead = max(1, round((SPACING - 1) * step))
        found = linear.gradient_descent(W[None], *moments, rate, ahead)
        risks = found.excess_risk[0]
        points.append((step, risk, 1 - float(risks[1]) / risk, linear.certificates(W, *moments, rate)))
        start, goal = points[0][1], GOAL * points[0][1]
        if (risks <= goal).any():
            reached = step + int(np.argmax(risks <= goal))
        if reached is not None or step + ahead > most_steps:
            break
        W, step = found.weights[0], step + ahead
    if not points:
        return
    start, goal = points[0][1], GOAL * points[0][1]
    for step, risk, measured, found in points:
        for theorem, here in found.items():
            at_start = points[0][3][theorem]
            # A theorem about the run applies from the start on, a theorem about a step at this point.
            certificate = at_start if here.scope == "run" else here
            promised_steps = at_start.steps(start, goal)
            yield CertifiedRow(
                run=name,
                depth=len(W),
                rate=rate,
                step=step,
                risk=2 * risk,
                theorem=theorem,
                scope=certificate.scope,
                applies=certificate.applies,
                reason=certificate.reason,
                promised=certificate.contraction or None,
                measured=measured,
                promised_steps=promised_steps if np.isfinite(promised_steps) else None,
                measured_steps=reached,
            )


def verdict(rows: Sequence[CertifiedRow]) -> Verdict:
    """Check that every step and every run reduces the risk at least as fast as guaranteed."""
    promised = [(row.measured, row.promised) for row in rows if row.promised is not None]
    if not promised:
        return Verdict(None, "no theorem gives a guarantee for these runs")
    # Smaller differences are rounding errors.
    kept = sum(measured >= share * (1 - 1e-6) - 1e-12 for measured, share in promised)
    numbers = []
    for (run, theorem), chosen in by_columns(rows, "run", "theorem").items():
        first = chosen[0]
        if first.promised_steps is not None and first.measured_steps is not None:
            numbers.append(f"{run}, {theorem}: {first.measured_steps} steps, {first.promised_steps:.3g} guaranteed")
    if not numbers:
        numbers = [f"{kept} of {len(promised)} steps reduce the risk at least as much as guaranteed"]
    return Verdict(kept == len(promised), "; ".join(numbers))


def draw(rows: Sequence[CertifiedRow]) -> Figure:
    """Draw the share of the risk that a step removes, measured and guaranteed, with a panel for each run."""
    handles = [make_legend_entry("measured", color="black", linewidth=3, alpha=0.4)]
    handles += [make_legend_entry(theorem, color=color, linestyle="--") for theorem, color in COLORS.items()]
    label = "share of the risk removed by a step"
    return panel_for_each(rows, ["run"], _panel, label, sharey=False, handles=handles, columns_of_legend=6)


def _panel(axes: Axes, rows: Sequence[CertifiedRow]) -> None:
    missing = []
    for number, (theorem, chosen) in enumerate(by_column(rows, "theorem").items()):
        if not number:
            line(axes, chosen, "step", "measured", color="black", linewidth=3, alpha=0.4)
        if not line(axes, chosen, "step", "promised", color=COLORS[theorem], linestyle="--"):
            missing.append(theorem)
    axes.set(title=f"{rows[0].run}, l = {rows[0].depth}", xlabel="step")
    values = [value for row in rows for value in (row.promised, row.measured) if value is not None]
    # Space for the note, and at least one labeled power of ten.
    axes.set_ylim(min(values) / 10, max(values) * 2)
    if missing:
        note(axes, textwrap.fill(f"do not apply: {', '.join(missing)}", 40))


def draw_steps(rows: Sequence[CertifiedRow]) -> Figure:
    """Draw the number of steps to a ten-thousandth of the risk, guaranteed against measured."""
    figure, (axes,) = panels(1)
    markers = dict(zip(by_column(rows, "run"), "os^D", strict=False))
    shown = []
    for (run, theorem), chosen in by_columns(rows, "run", "theorem").items():
        first = chosen[0]
        if first.promised_steps is not None and first.measured_steps:
            axes.loglog(first.measured_steps, first.promised_steps, markers[run], color=COLORS[theorem], markersize=8)
            shown += [first.measured_steps, first.promised_steps]
    compare_steps(axes, shown)
    promising = {row.theorem for row in rows if row.promised_steps is not None}
    handles = [
        make_legend_entry(
            name if name in promising else f"{name} (no guarantee)", color=color, marker="o", linestyle=""
        )
        for name, color in COLORS.items()
    ]
    handles += [make_legend_entry(run, marker=marker, linestyle="") for run, marker in markers.items()]
    add_legend(figure, handles, columns=2)
    return figure


def compare_steps(axes: Axes, shown: Sequence[float]) -> None:
    """Label axes of guaranteed against measured steps, and draw the diagonal.

    Args:
        axes: logarithmic axes.
        shown: all numbers of steps drawn; there is no diagonal without any.
    """
    if shown:
        ends = [min(shown) / 2, max(shown) * 2]
        axes.loglog(ends, ends, "k:", linewidth=1)
    axes.set(xlabel="measured steps", ylabel="guaranteed number of steps")


EXPERIMENT = Experiment("certified", cases, measure, {"certified": draw, "certified_steps": draw_steps}, verdict)
