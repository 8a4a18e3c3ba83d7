"""Largest layer norm of factorizations against depth, compared with the bounds of Theorem 2.1."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.experiment import Cases, Experiment
from trainers.experiments.panels import line, panel_for_each
from trainers.landscape.targets import Targets

if TYPE_CHECKING:
    from trainers.landscape.settings import Settings

Method = Literal["polar", "paper", "log"]
METHODS: tuple[Method, ...] = ("polar", "paper", "log")


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


def cases(targets: Targets, settings: "Settings") -> Cases:
    """Yield (name, R, depth) for each target with a positive determinant and each depth."""
    for name, R in targets.with_sign(1).items():
        for depth in settings.networks.depths:
            yield name, R, depth


def measure(name: str, R: NDArray[np.float64], depth: int) -> list[FactorizationRow]:
    """Compute |||A||| of every factorization of one target R, (d, d) with positive determinant, at one depth."""
    bounds = linear.factorization_bounds(R, depth)
    row = FactorizationRow(
        target=name,
        depth=depth,
        gamma=bounds.gamma,
        theorem=bounds.theorem,
        theorem_applies=bounds.theorem_applies,
        polar_bound=bounds.polar,
        lower_bound=bounds.lower,
        **{method: compute_factorization_norm(R, depth, method) for method in METHODS},
    )
    return [row]


def compute_factorization_norm(R: NDArray[np.float64], depth: int, method: Method) -> float | None:
    """Return |||A||| of `linear.factorize`, or None if the method does not apply.

    For example, the depth may be too small for the paper's construction, or R may have no principal logarithm.
    """
    try:
        return linear.tensor_norm(linear.factorize(R, depth, method))
    except ValueError:
        return None


def draw(rows: Sequence[FactorizationRow]) -> Figure:
    """Draw |||A||| against depth, with a panel for each of the first four targets."""
    return panel_for_each(rows, "target", _panel, "|||A|||, the largest layer norm", most=4)


def _panel(axes: Axes, rows: Sequence[FactorizationRow]) -> None:
    curves = {
        "theorem": {"label": "theorem, (4π + 3γ)/l", "color": "black", "linestyle": "--"},
        "paper": {"label": "the paper's construction", "color": "tab:orange", "marker": "s"},
        "log": {"label": "matrix logarithm", "color": "tab:green", "marker": "^"},
        "polar": {"label": "polar", "color": "tab:blue", "marker": "o"},
        "lower_bound": {"label": "lower bound", "color": "grey", "linestyle": ":"},
    }
    for column, style in curves.items():
        line(axes, rows, "depth", column, markersize=4, **style)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("depth l")


EXPERIMENT = Experiment("factorization", cases, measure, {"factorization": draw})
