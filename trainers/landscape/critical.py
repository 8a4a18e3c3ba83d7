"""Critical points of small nonlinear residual networks, against the best linear predictor."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.backends import import_tensorflow
from trainers.experiments.panels import panel_for_each
from trainers.experiments.program import Results, Verdict

if TYPE_CHECKING:
    import keras

GOAL = 1e-9
# Dimension, blocks and hidden units of each. In the last two shapes, the hidden units cover all inputs.
SHAPES = ((6, 1, 1), (6, 2, 1), (6, 2, 2), (6, 3, 1), (3, 2, 2), (2, 2, 2))
SCALES = (0.1, 0.5, 1.0)
# Risks above the linear one by a larger fraction, and eigenvalues below minus this, are not rounding.
RELATIVE, EIGENVALUE = 1e-9, 1e-8


@dataclasses.dataclass(frozen=True)
class CriticalRow:
    """One critical point."""

    network: str
    data: int  # seed of the data
    seed: int  # of the start
    gradient: float  # norm
    ratio: float  # risk over that of the best linear predictor
    eigenvalue: float  # smallest one of the Hessian, by NumPy
    operator: float  # the same by `HessianOperator`
    conditions: bool  # True if both conditions of the theorem hold
    better: bool  # True if the risk is at most the linear one
    zero: bool  # True if the risk is that of the zero predictor
    saddle: bool  # True if both eigenvalues are negative


def build(network: linear.ResidualNetwork, theta: NDArray[np.float64]) -> "keras.Model":
    """Return the Keras model of a network in float64, with its parameters."""
    import keras

    def dense(units: int, activation: str | None = None) -> keras.layers.Layer:
        return keras.layers.Dense(units, activation, use_bias=False, dtype="float64")

    h = inputs = keras.Input((network.dim,), dtype="float64")
    for _ in range(network.blocks):
        branch = dense(network.dim)(dense(network.hidden, None if network.linear else "tanh")(h))
        h = keras.layers.Add(dtype="float64")([h, branch])
    model = keras.Model(inputs, dense(1)(h))
    set_parameters(model, network, theta)
    return model


def set_parameters(model: "keras.Model", network: linear.ResidualNetwork, theta: NDArray[np.float64]) -> None:
    """Set the weights of a model of `build`."""
    U, V, w = network.unpack(theta)
    weights = [matrix for pair in zip(U, V, strict=True) for matrix in pair] + [w[None]]
    model.set_weights([matrix.T for matrix in weights])


def measure(dim: int, blocks: int, hidden: int, data: int, points: int, samples: int) -> Iterator[CriticalRow]:
    """Search for critical points on one data set, whose seed is `data`, from random starts."""
    import_tensorflow()
    from idmatters_tf.curvature import HessianOperator

    network = linear.ResidualNetwork(dim, blocks, hidden)
    rng = np.random.default_rng(data)
    X = rng.normal(size=(dim, samples))
    y = np.abs(X[0]) + np.tanh(X[0] * X[-1]) + 0.3 * rng.normal(size=samples)
    zero_risk = float(np.square(y).mean()) / 2
    model = operator = None
    found = 0
    for seed in range(4 * points):
        if found == points:
            break
        start = SCALES[seed % len(SCALES)] * np.random.default_rng([data, seed]).normal(size=network.parameters)
        point = linear.critical_point(network, start, X, y, steps=60, goal=GOAL)
        if point.gradient_norm > GOAL:
            continue
        found += 1
        if model is None or operator is None:
            model = build(network, point.theta)
            operator = HessianOperator(model, "mse", (X.T, y[:, None]))
        set_parameters(model, network, point.theta)
        # The mean squared error of one output is twice the risk.
        smallest = float(np.linalg.eigvalsh(operator.to_dense())[0]) / 2
        yield CriticalRow(
            f"d = {dim}, {blocks} blocks of {hidden}",
            data,
            seed,
            point.gradient_norm,
            point.risk / point.linear_risk,
            point.smallest_eigenvalue,
            smallest,
            point.feature_rank == dim and point.covered_rank < dim,
            point.risk <= point.linear_risk * (1 + RELATIVE),
            abs(point.risk - zero_risk) <= RELATIVE * zero_risk,
            max(point.smallest_eigenvalue, smallest) < -EIGENVALUE,
        )


def verdicts(rows: Sequence[CriticalRow]) -> Iterator[Verdict]:
    """Check that each critical point is at most the best linear predictor or a strict saddle point."""
    for held, name in ((True, "conditions"), (False, "no conditions")):
        own = [row for row in rows if row.conditions is held]
        if not own:
            continue
        worse = [row for row in own if not row.better]
        numbers: dict[str, float] = {"points": len(own), "above the linear predictor": len(worse)}
        numbers["below the linear predictor"] = sum(row.ratio < 1 - RELATIVE for row in own)
        if worse:
            numbers["of these zero predictors"] = sum(row.zero for row in worse)
            numbers["eigenvalue nearest to zero"] = max(row.eigenvalue for row in worse)
        claim = "each critical point is at most the best linear predictor or has a negative eigenvalue"
        claim += "" if held else ", also where the conditions fail"
        yield Verdict(name, all(row.saddle for row in worse), claim, numbers)
    difference = max(abs(row.eigenvalue - row.operator) for row in rows)
    claim = "HessianOperator has the smallest eigenvalue of NumPy"
    yield Verdict("operator", difference < 1e-10, claim, {"largest difference": difference})


def draw(rows: Sequence[CriticalRow]) -> Figure:
    """Draw the smallest eigenvalue against the risk."""
    return panel_for_each(rows, "network", _panel)


def _panel(axes: Axes, rows: Sequence[CriticalRow]) -> None:
    axes.scatter([row.ratio for row in rows], [row.eigenvalue for row in rows], s=8)
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set(xlabel="risk / risk of the best linear predictor", ylabel="smallest eigenvalue", title=rows[0].network)


def run(results: Results, points: int, samples: int) -> None:
    """Search in networks of all shapes, with an equal number of points and at most ten on each data set."""
    own = max(1, points // len(SHAPES))
    cases = [
        (*shape, data, min(10, own - 10 * data), samples) for shape in SHAPES for data in range(math.ceil(own / 10))
    ]
    results.report("critical", measure, cases, {"critical": draw}, verdicts)
