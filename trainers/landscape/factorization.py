"""Linear maps to be learned, and the largest layer norm of their factorizations against the bounds of Theorem 2.1."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.panels import line, mark_sizes, panel_for_each
from trainers.experiments.program import Results

# Maps R, (d, d) each, by name.
Targets = Mapping[str, NDArray[np.float64]]
Method = Literal["polar", "paper", "log"]
CURVES = {
    "theorem": {"label": "theorem, (4π + 3γ)/l", "color": "black", "linestyle": "--"},
    "paper": {"label": "the paper's construction", "color": "tab:orange", "marker": "s"},
    "log": {"label": "matrix logarithm", "color": "tab:green", "marker": "^"},
    "polar": {"label": "polar", "color": "tab:blue", "marker": "o"},
    "lower_bound": {"label": "lower bound", "color": "grey", "linestyle": ":"},
}


def random_target(dim: int, condition: float, determinant: int, seed: int) -> NDArray[np.float64]:
    """Return R = U K V^T with Haar-distributed U and V and logarithmically spaced singular values of smallest gamma.

    `condition` is sigma_max / sigma_min, and `determinant` is the sign of det R.
    """
    U, V = linear.initial_weights("orthogonal", 2, 1, dim, seed=seed)[:, 0]
    spread = np.linspace(0.5, -0.5, dim) if dim > 1 else np.zeros(1)
    R = U * condition**spread @ V.T
    if np.sign(np.linalg.slogdet(R)[0]) != determinant:
        R[:, 0] = -R[:, 0]
    return R


def random_targets(dim: int, conditions: Sequence[float], seeds: int) -> Targets:
    """Return `seeds` random targets of each condition number and sign; for d = 1 the only condition number is 1."""
    return {
        f"κ = {condition:g}, det {symbol} 0, seed {seed}": random_target(dim, condition, sign, seed)
        for seed in range(seeds)
        for condition in ([1.0] if dim == 1 else conditions)
        for symbol, sign in ((">", 1), ("<", -1))
    }


@dataclasses.dataclass(frozen=True)
class FactorizationRow:
    """One target at one depth."""

    target: str
    depth: int
    # See `linear.FactorizationBounds`.
    gamma: float
    theorem: float
    theorem_applies: bool
    polar_bound: float
    lower_bound: float
    # |||A||| of `linear.factorize` by these methods; None if a method does not apply.
    polar: float | None
    paper: float | None
    log: float | None


def run(results: Results, targets: Targets, depths: Sequence[int]) -> None:
    """Factorize the targets with a positive determinant at each depth."""
    positive = {name: R for name, R in targets.items() if np.linalg.slogdet(R)[0] == 1}
    cases = [(*item, depth) for item in positive.items() for depth in depths]
    results.report("factorization", measure, cases, {"factorization": draw})


def measure(name: str, R: NDArray[np.float64], depth: int) -> list[FactorizationRow]:
    """Compute |||A||| of every factorization of one target R, (d, d) with positive determinant, at one depth."""
    bounds = linear.factorization_bounds(R, depth)

    def norm(method: Method) -> float | None:
        try:
            return linear.tensor_norm(linear.factorize(R, depth, method))
        except ValueError:
            # The depth is too small for the paper's construction, or R has no principal logarithm, for example.
            return None

    numbers = bounds.gamma, bounds.theorem, bounds.theorem_applies, bounds.polar, bounds.lower
    return [FactorizationRow(name, depth, *numbers, norm("polar"), norm("paper"), norm("log"))]


def draw(rows: Sequence[FactorizationRow]) -> Figure:
    """Draw |||A||| against depth, with a panel for each of the first four targets."""
    return panel_for_each(rows, "target", _panel, label="|||A|||, the largest layer norm", most=4)


def _panel(axes: Axes, rows: Sequence[FactorizationRow]) -> None:
    for column, style in CURVES.items():
        line(axes, rows, "depth", column, markersize=4, **style)
    mark_sizes(axes, rows, "depth")
