"""Gradient flow, the limit of gradient descent at small rates; its conserved quantities; comparison with descent.

The loss is that of `gradient_descent`, L = ||Y - f X||_F^2 / (2m), and time is the number of steps times the rate.
"""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

import dataclasses
import math

import numpy as np
import scipy.integrate
import scipy.sparse.linalg
from numpy.typing import ArrayLike

from idmatters_tf.linear._arguments import (
    Floats,
    Integers,
    non_negative,
    overflow,
    positive_integer,
    real_array,
    within_float64,
)
from idmatters_tf.linear.dynamics import gradient_descent
from idmatters_tf.linear.hessian import ShortcutHessian, shortcut_hessian
from idmatters_tf.linear.network import frobenius_norm
from idmatters_tf.linear.shortcuts import excess_risk, layer_jacobians
from idmatters_tf.linear.statistics import regression

# Largest number of weights for the dense Hessian, which is faster than Lanczos and exact for multiple eigenvalues.
DENSE = 400

# SciPy's lower limit for relative tolerances.
SMALLEST_RTOL = 100 * float(np.finfo(np.float64).eps)


@dataclasses.dataclass(frozen=True)
class Flow:
    """Trajectory of gradient flow.

    Attributes:
        times: (records,).
        weights: (records, units, n, d, d).
        excess_risk: L - L_min, (records,).
        balance_drift: largest Frobenius norm of the change of the conserved matrices since the start, (records,). It is
            0 for exact flow and measures the error of the solver.
        evaluations: number of gradients that the solver computed.
    """

    times: Floats
    weights: Floats
    excess_risk: Floats
    balance_drift: Floats
    evaluations: int


@within_float64
def gradient_flow(
    W: ArrayLike,
    sxx: ArrayLike,
    syx: ArrayLike,
    times: ArrayLike,
    shortcut: bool = True,
    rtol: float = 1e-10,
    atol: float = 1e-12,
    max_evaluations: int = 100_000,
) -> Flow:
    """Solve dW/dt = -dL/dW from one starting point by SciPy's Runge-Kutta method of order 8 (DOP853).

    Args:
        W: starting point, (units, n, d, d).
        sxx: X X^T / m, (d, d).
        syx: Y X^T / m, (d, d).
        times: ascending non-negative times of the records, (records,).
        shortcut: False for a plain network.
        rtol: relative tolerance of the solver for each weight, at least 2.3e-14.
        atol: absolute tolerance of the solver for each weight.
        max_evaluations: maximum number of gradients.

    Returns:
        `Flow`.

    Raises:
        ValueError: if times are negative or not ascending, or the solver fails or requires more gradients.
    """
    W = real_array("W", W, ("units", "n", "d", "d"))
    times = real_array("times", times, ("records",))
    if times[0] < 0 or (np.diff(times) < 0).any():
        raise ValueError(f"Argument `times` must be ascending, from 0 or later. Received: {times.tolist()}")
    if non_negative("rtol", rtol) < SMALLEST_RTOL:
        raise ValueError(f"Argument `rtol` must be at least {SMALLEST_RTOL:.3g}. Received: rtol={rtol!r}")
    atol, most = non_negative("atol", atol), positive_integer("max_evaluations", max_evaluations)
    evaluations = 0
    root, targets = regression(sxx, syx)
    shape = W.shape

    def velocity(time: float, flat: Floats) -> Floats:
        nonlocal evaluations
        evaluations += 1
        if evaluations > most:
            raise ValueError(
                f"Argument `max_evaluations` must be large enough to follow the flow to time {end:.3g}. Received: "
                f"max_evaluations={most}, used up at time {math.ldexp(time, exponent):.3g}. Use an earlier time, "
                f"larger tolerances or more evaluations."
            )
        jacobians = layer_jacobians(flat.reshape(shape), shortcut)
        gradient = jacobians.pull_back((jacobians.end_to_end @ root - targets) @ root.T)
        flow = np.ldexp(-gradient.ravel(), exponent)
        # A trial step that overflows is repeated with a smaller one. The start must not overflow.
        if evaluations == 1 and not np.isfinite(flow).all():
            raise overflow("gradient_flow")
        return flow

    # The end must be after the start, also if the only time is 0. In the units of the solver it is between 1/2 and 1,
    # because the choice of the first step has absolute thresholds.
    end = float(times[-1]) or float(np.finfo(np.float64).tiny)
    exponent = math.frexp(end)[1]
    distinct, record = np.unique(np.ldexp(times, -exponent), return_inverse=True)
    span = 0.0, math.ldexp(end, -exponent)
    solved = scipy.integrate.solve_ivp(
        velocity, span, W.ravel(), method="DOP853", t_eval=distinct, rtol=rtol, atol=atol
    )
    if not solved.success:
        raise ValueError(
            f"The flow could not be followed to time {end:.3g}: {solved.message} Use an earlier time, or tolerances "
            f"above rtol={rtol:g}, atol={atol:g}."
        )
    weights = np.asarray(solved.y.T, np.float64)[record].reshape(-1, *shape)
    before = _defects(W, shortcut)
    maps = [layer_jacobians(one, shortcut).end_to_end for one in weights]
    return Flow(
        times,
        weights,
        np.array([float(np.linalg.norm(one @ root - targets)) ** 2 / 2 for one in maps]),
        np.array([_largest(_defects(one, shortcut) - before) for one in weights]),
        int(solved.nfev),
    )


@within_float64
def balance_defects(W: ArrayLike, shortcut: bool = True) -> Floats:
    """Return W_(j+1)^T W_(j+1) - W_j W_j^T for successive layers, which gradient flow conserves entry by entry.

    Conservation follows from W_(j+1)^T dL/dW_(j+1) = dL/dW_j W_j^T, which holds for successive layers without a
    shortcut between them: all layers of a plain network, and layers inside a unit of an n-shortcut network. A unit of
    one layer with a shortcut is the plain layer I + A.
    Source: Arora, Cohen, Golowich & Hu, *A Convergence Analysis of Gradient Descent for Deep Linear Neural Networks*
    (arXiv 1810.02281), Definition 1 (definition); Arora, Cohen & Hazan (2018) (conservation).

    Args:
        W: (units, n, d, d).
        shortcut: False for a plain network.

    Returns:
        (pairs, d, d).
    """
    return _defects(real_array("W", W, ("units", "n", "d", "d")), shortcut)


def _defects(W: Floats, shortcut: bool) -> Floats:
    d = W.shape[-1]
    if shortcut and W.shape[1] > 1:
        earlier, later = W[:, :-1].reshape(-1, d, d), W[:, 1:].reshape(-1, d, d)
    else:
        layers = as_plain(W, shortcut)
        earlier, later = layers[:-1], layers[1:]
    return later.swapaxes(-1, -2) @ later - earlier @ earlier.swapaxes(-1, -2)


@within_float64
def balancedness(W: ArrayLike, shortcut: bool = True) -> float:
    """Return the largest Frobenius norm of the `balance_defects`, the delta of delta-balanced weights."""
    return _largest(_defects(real_array("W", W, ("units", "n", "d", "d")), shortcut))


def largest_defect(layers: Floats) -> float:
    """Return the `balancedness` of plain layers (layers, d, d); infinite or NaN if it exceeds float64."""
    return _largest(_defects(layers[:, None], shortcut=False))


def as_plain(W: Floats, shortcut: bool) -> Floats:
    """Return the layers of a plain network, or of the plain network that is equal to units of one layer with shortcuts.

    Args:
        W: (units, n, d, d), n = 1 with shortcuts.
        shortcut: False for a plain network.

    Returns:
        (layers, d, d).
    """
    layers = W.reshape(-1, *W.shape[2:])
    return layers + np.eye(W.shape[-1]) if shortcut else layers


@within_float64
def sharpness(W: ArrayLike, sxx: ArrayLike, syx: ArrayLike, shortcut: bool = True) -> float:
    """Compute the largest eigenvalue of the Hessian of L.

    Gradient descent with a rate above 2 / sharpness is unstable along its eigenvector, see
    `idmatters_tf.curvature.stability_threshold`.

    Args:
        W: (units, n, d, d).
        sxx: (d, d).
        syx: (d, d).
        shortcut: False for a plain network.
    """
    W = real_array("W", W, ("units", "n", "d", "d"))
    if W.size <= DENSE:
        return float(np.linalg.eigvalsh(shortcut_hessian(W, sxx, syx, shortcut))[-1])
    operator = ShortcutHessian(W, sxx, syx, shortcut)
    # A fixed starting vector makes the result reproducible; ARPACK's default is random.
    start = np.random.default_rng(0).normal(size=W.size)
    return float(scipy.sparse.linalg.eigsh(operator, 1, which="LA", v0=start, return_eigenvectors=False)[0])


@dataclasses.dataclass(frozen=True)
class FlowComparison:
    """Comparison of gradient descent and flow from the same point; see `descent_against_flow`.

    Attributes:
        steps: (records,).
        distance: Frobenius norm of the difference of the weights at the same time, (records,).
        scale: Frobenius norm of the distance of the flow from the start, (records,).
        descent_excess, flow_excess: L - L_min, (records,).
        sharpness: largest eigenvalue of the Hessian along descent, (records,).
        limit: 2 / rate; infinite for rate 0.
        left_at: first recorded step with a distance above `tolerance` times `scale`; -1 for none.
    """

    steps: Integers
    distance: Floats
    scale: Floats
    descent_excess: Floats
    flow_excess: Floats
    sharpness: Floats
    limit: float
    left_at: int


def descent_against_flow(
    W: ArrayLike,
    sxx: ArrayLike,
    syx: ArrayLike,
    learning_rate: float,
    steps: int,
    shortcut: bool = True,
    record_every: int = 1,
    tolerance: float = 0.1,
    max_evaluations: int = 100_000,
) -> FlowComparison:
    """Compare gradient descent with gradient flow from the same point.

    Args:
        W: starting point, (units, n, d, d).
        sxx: (d, d).
        syx: (d, d).
        learning_rate: learning rate of descent. Step k is compared with time k * rate.
        steps: number of updates. Recording ends before a divergence.
        shortcut: False for a plain network.
        record_every: number of updates between records.
        tolerance: relative distance beyond which descent has left the flow.
        max_evaluations: maximum number of gradients for the flow.

    Returns:
        `FlowComparison`.
    """
    W = real_array("W", W, ("units", "n", "d", "d"))
    rate, tolerance = non_negative("learning_rate", learning_rate), non_negative("tolerance", tolerance)
    steps = positive_integer("steps", steps)
    # All larger numbers are equivalent: no records after the start.
    record_every = min(positive_integer("record_every", record_every), steps + 1)
    points, current = [W], W
    excess: list[float] = []
    for _ in range(steps // record_every):
        found = gradient_descent(current[None], sxx, syx, rate, record_every, shortcut, record_every=record_every)
        excess.append(float(found.excess_risk[0, 0]))
        if found.diverged_at[0] >= 0:
            break
        current = found.weights[0]
        points.append(current)
    if len(excess) < len(points):
        excess.append(excess_risk(current, sxx, syx, shortcut))
    path = np.array(points)
    recorded = record_every * np.arange(len(path))
    flow = gradient_flow(W, sxx, syx, rate * recorded, shortcut, max_evaluations=max_evaluations)
    distance = np.array([frobenius_norm(difference) for difference in path - flow.weights])
    scale = np.array([frobenius_norm(way) for way in flow.weights - W])
    away = np.flatnonzero(distance > tolerance * scale)
    return FlowComparison(
        steps=recorded,
        distance=distance,
        scale=scale,
        descent_excess=np.array(excess),
        flow_excess=flow.excess_risk,
        sharpness=np.array([sharpness(one, sxx, syx, shortcut) for one in path]),
        limit=2 / rate if rate else math.inf,
        left_at=int(recorded[away[0]]) if away.size else -1,
    )


def _largest(matrices: Floats) -> float:
    return max((frobenius_norm(matrix) for matrix in matrices), default=0.0)
