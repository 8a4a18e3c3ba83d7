"""Gradient descent from the identity for symmetric targets, against one recursion per eigenvalue."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.panels import line, mark_sizes, panel_for_each
from trainers.experiments.program import Results, Verdict, group_by

# Losses that count as converged.
CONVERGED = 1e-8
# First word of the names of targets with negative eigenvalues.
INDEFINITE = "indefinite"


@dataclasses.dataclass(frozen=True)
class IdentityRow:
    """One target at one depth."""

    target: str
    depth: int
    negative: int  # number of negative eigenvalues
    condition: float
    limit: float  # sum of r^2 / 2 over the negative eigenvalues r
    curvature: float  # smallest eigenvalue of the Hessian at the limit
    loss: float  # after the full descent for diag(r), which has no rounding errors outside of the diagonal
    difference: float  # largest difference of an eigenvalue of that network from the recursion
    rotated: float  # loss after the full descent for Q diag(r) Q^T with a random rotation
    long: float  # loss of the recursion after 100 times as many steps
    steps: int | None  # of the recursion to `CONVERGED`; None if it is not reached within the largest bound
    bound: int | None  # upper bound of the same; None for negative eigenvalues
    escape: int | None  # expected step at which rounding errors leave the limit; None if it is not a strict saddle


def symmetric_targets(dim: int, conditions: Sequence[float], targets: int) -> dict[str, NDArray[np.float64]]:
    """Return symmetric targets by name, half of them with 1 to d / 2 negative eigenvalues.

    The absolute eigenvalues are log-uniform between condition^(-1/2) and condition^(1/2), and include both.
    """
    found = {}
    for number in range(targets):
        condition = conditions[number % len(conditions)]
        rng = np.random.default_rng(number)
        exponents = rng.uniform(-0.5, 0.5, dim)
        exponents[:2] = -0.5, 0.5
        eigenvalues = condition**exponents
        if negative := number % 2:
            chosen = rng.permutation(dim)[: rng.integers(1, dim // 2 + 1)]
            eigenvalues[chosen] *= -1
        basis = linear.initial_weights("orthogonal", 1, 1, dim, seed=number)[0, 0]
        R = basis * eigenvalues @ basis.T
        found[f"{INDEFINITE if negative else 'positive'}, κ = {condition:g}, seed {number}"] = (R + R.T) / 2
    return found


def measure(targets: dict[str, NDArray[np.float64]], depth: int, steps: int, long_steps: int) -> Iterator[IdentityRow]:
    """Train residual networks from zero for all targets in parallel, and run the recursions."""
    R = np.array(list(targets.values()))
    eigenvalues: NDArray[np.float64] = np.linalg.eigvalsh(R).astype(np.float64)
    diagonal = eigenvalues[:, :, None] * np.eye(R.shape[1])
    rates = np.array([linear.identity_start_rate(matrix, depth) for matrix in R])
    maps = linear.FixedMaps(np.eye(R.shape[1]), np.eye(R.shape[1]))
    exact = linear.fixed_maps_descent(maps, diagonal, depth, rates, steps)
    rotated = linear.fixed_maps_descent(maps, R, depth, rates, steps)
    a = linear.eigenvalue_descent(eigenvalues, depth, rates[:, None], steps)
    long = linear.eigenvalue_descent(eigenvalues, depth, rates[:, None], long_steps)
    bounds = [
        linear.steps_to_loss(matrix, depth, rate, CONVERGED) if own[0] > 0 else None
        for matrix, own, rate in zip(R, eigenvalues, rates, strict=True)
    ]
    reached = steps_to(eigenvalues, depth, rates, max((bound for bound in bounds if bound is not None), default=0))
    for number, (name, matrix) in enumerate(targets.items()):
        own = eigenvalues[number]
        negative = int((own < 0).sum())
        learned = np.diagonal(linear.compose(exact.A[:, number]))
        curvature = linear.identity_limit_curvature(matrix, depth)
        yield IdentityRow(
            name,
            depth,
            negative,
            # Without rounding errors, which would make groups of their own.
            float(f"{np.abs(own).max() / np.abs(own).min():.6g}"),
            linear.identity_start_limit(matrix),
            curvature,
            float(exact.losses[-1, number]),
            float(np.abs(learned - a[number] ** depth).max()),
            float(rotated.losses[-1, number]),
            float(np.square(long[number] ** depth - own).sum() / 2),
            int(reached[number]) if reached[number] >= 0 else None,
            bounds[number],
            round(np.log(1e16) / np.log1p(-rates[number] * curvature)) if curvature < 0 else None,
        )


def steps_to(eigenvalues: NDArray[np.float64], depth: int, rates: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Return the first step of each recursion at which the loss is at most `CONVERGED`; -1 if it is not reached."""
    a = np.ones_like(eigenvalues)
    reached = np.full(len(a), -1)
    waiting = (eigenvalues > 0).all(axis=1)
    for step in range(most + 1):
        power = a ** (depth - 1)
        errors = power * a - eigenvalues
        reached[(reached < 0) & (np.square(errors).sum(axis=1) <= 2 * CONVERGED)] = step
        if (reached[waiting] >= 0).all():
            break
        a -= rates[:, None] * power * errors
    return reached


def verdicts(rows: Sequence[IdentityRow]) -> Iterator[Verdict]:
    """Compare convergence, the limit of indefinite targets, the recursion, and the effect of rounding errors."""
    positive = [row for row in rows if not row.negative]
    # At depth 2, the limit is a strict saddle point also within the diagonal, which rounding errors leave.
    deep = [row for row in rows if row.depth > 2]
    indefinite = [row for row in deep if row.negative]
    if positive:
        ratio = [row.bound / max(row.steps, 1) for row in positive if row.steps is not None and row.bound]
        yield Verdict(
            "positive",
            all(row.steps is not None and row.steps <= (row.bound or 0) for row in positive),
            "descent from the identity reaches every symmetric positive definite target within the bound of the steps",
            {
                "cases": len(positive),
                "largest steps": max(row.steps or 0 for row in positive),
                "largest bound over steps": max(ratio),
                "smallest bound over steps": min(ratio),
            },
        )
    if indefinite:
        yield Verdict(
            "indefinite",
            all(min(row.loss, row.long) >= row.limit * (1 - 1e-12) for row in indefinite),
            "with a negative eigenvalue the loss stays above half the sum of the squares of the negative eigenvalues, "
            "for diagonal targets at depth 3 and more",
            {
                "cases": len(indefinite),
                "largest final loss over limit": max(row.long / row.limit for row in indefinite),
            },
        )
        due = [row for row in indefinite if row.escape is not None]
        left = [row for row in indefinite if row.rotated < row.limit * (1 - 1e-6)]
        yield Verdict(
            "rounding",
            all(row.escape is not None for row in left) if left else None,
            "rounding errors leave this limit for rotated targets, and only where it is a strict saddle point",
            {"strict saddle points": len(due), "left": len(left)},
        )
    yield Verdict(
        "recursion",
        all(row.difference < 1e-12 for row in deep),
        "the full descent is that of one recursion per eigenvalue, for diagonal targets at depth 3 and more",
        {"largest difference": max(row.difference for row in deep)},
    )


def draw(rows: Sequence[IdentityRow]) -> Figure:
    """Draw steps to convergence of positive targets, and the remaining loss of the others over its limit, by depth."""
    return panel_for_each(rows, "condition", _panels, 2)


def _panels(steps: Axes, remaining: Axes, rows: Sequence[IdentityRow]) -> None:
    for own in group_by([row for row in rows if not row.negative], "target").values():
        line(steps, own, "depth", "steps", color="tab:blue", alpha=0.3)
        line(steps, own, "depth", "bound", color="grey", linestyle=":", alpha=0.3)
    for own in group_by([row for row in rows if row.negative], "target").values():
        remaining.plot([row.depth for row in own], [row.long / row.limit for row in own], color="tab:red", alpha=0.3)
    for panel in (steps, remaining):
        mark_sizes(panel, rows, "depth")
        panel.set_yscale("log")
    steps.set(ylabel="steps to a loss of 1e-8", title=f"κ = {rows[0].condition:g}, positive")
    remaining.set(ylabel="final loss / limit", yscale="linear", title=f"κ = {rows[0].condition:g}, indefinite")


def run(results: Results, targets: dict[str, NDArray[np.float64]], depths: Sequence[int], steps: int) -> None:
    """Measure all depths."""
    cases = [(targets, depth, steps, 100 * steps) for depth in depths]
    results.report("identity", measure, cases, {"identity": draw}, verdicts)
