"""Theorem 1 of Li et al.: zero point of an n-shortcut network, in closed form and by automatic differentiation."""

import dataclasses

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf import linear
from idmatters_tf._keras_types import Tensor
from idmatters_tf.curvature import Summary, dense_hessian, summarize
from idmatters_tf.models.linear import assign_weights, get_weights, shortcut_network
from trainers.cli.startup import print_lines
from trainers.experiments.program import Results
from trainers.shortcuts.settings import Theorem1Settings, UnitSettings
from trainers.shortcuts.training import CLASSES, Regression

# Derivatives at zero.
SLOPES = {"linear": 1.0, "tanh": 1.0, "silu": 0.5, "gelu": 0.5}
# Largest number of parameters for which automatic differentiation computes the dense Hessian.
MOST_PARAMETERS = 5000


def closed_form(problem: Regression, network: UnitSettings) -> NDArray[np.float64]:
    """Return the eigenvalues at zero in ascending order."""
    # At zero every unit receives the inputs of the network.
    inputs = np.asarray(keras.ops.convert_to_numpy(keras.activations.get(network.pre)(problem.X)), np.float64)
    sxx, syx = (of @ inputs.T / inputs.shape[1] for of in (problem.X, problem.Y))
    slope = SLOPES[network.mid] * SLOPES[network.post]
    return linear.zero_hessian_spectrum(network.units, network.shortcut_depth, sxx, syx, slope=slope)


def by_differentiation(problem: Regression, network: UnitSettings) -> NDArray[np.float64]:
    """Return the eigenvalues of the Keras model's Hessian at zero, ascending, (units * shortcut_depth * d^2,)."""
    hessian = dense_hessian(_zero_model(network), half_squares, (problem.X.T, problem.Y.T), batch_size=1000)
    return np.asarray(np.linalg.eigvalsh(hessian), np.float64)


def _zero_model(network: UnitSettings) -> keras.Model:
    activations = network.pre, network.mid, network.post
    return shortcut_network(CLASSES, network.units, network.shortcut_depth, *activations, kernel_initializer="zeros")


def half_squares(y: Tensor, outputs: Tensor) -> Tensor:
    """Return ||y - f(x)||^2 / 2 of each example. Its mean is Li et al.'s loss (Eq. 6)."""
    return keras.ops.sum((y - outputs) ** 2, axis=-1) / 2  # pyright: ignore[reportOptionalOperand]


def stationary_order(problem: Regression, network: UnitSettings) -> tuple[int, list[float]]:
    """Compute the order of stationarity: the order of growth of the loss along three lines through zero, minus one.

    The change of the loss is computed as |D|^2 / (2m) - <D, Y - X> / m, where D is the change of the outputs, because a
    difference of losses would cancel. The exponent follows from steps t and 2t with t^n = 1e-5, where n is the number
    of layers of a unit. Returns the order, an integer, and the exponents of the lines from which it was rounded.
    """
    model = _zero_model(network)
    shape = get_weights(model).shape
    rng = np.random.default_rng(0)
    step = 10 ** (-5 / network.shortcut_depth)
    exponents = []
    for _ in range(3):
        direction = rng.normal(size=shape) / np.sqrt(shape[-1])
        changes = []
        for size in (step, 2 * step):
            assign_weights(model, size * direction)
            outputs = np.asarray(keras.ops.convert_to_numpy(model(problem.X.T)), dtype=np.float64)
            moved = outputs.T - problem.X
            changes.append(np.sum(moved**2) / 2 - np.vdot(moved, problem.Y - problem.X))
        exponents.append(float(np.log2(abs(changes[1] / changes[0]))))
    return round(float(np.median(exponents))) - 1, exponents


def run(problem: Regression, settings: Theorem1Settings, results: Results) -> None:
    """Analyze the zero point, print the results, and store them as numbers."""
    network = settings.networks
    problem = problem.first(settings.networks.samples)
    n = network.shortcut_depth
    dim = len(problem.X)
    parameters = network.units * n * dim**2
    print_lines(
        f"{network.units} units of {n} layers of {dim} x {dim}, {parameters:,} weights, all zero",
        f"pre {network.pre}, mid {network.mid}, post {network.post}; {problem.X.shape[1]:,} examples, {problem.origin}",
    )
    order, exponents = stationary_order(problem, network)
    sxx, syx, _ = problem.statistics
    # Theorem 1 assumes activations that vanish at zero, as all of `SLOPES` do.
    is_linear = network.pre == network.mid == network.post == "linear"
    expected = linear.zero_stationary_order(n, sxx, syx) if is_linear else n - 1
    growth = f"the loss grows like t^{np.median(exponents):.3f}"
    results.add(f"order of stationarity, measured: {order} ({growth}); by Theorem 1: {expected}")
    spectrum = closed_form(problem, network)
    results.add(f"closed form: {_in_words(spectrum)}")
    if parameters > MOST_PARAMETERS:
        results.add(f"by tape: skipped for more than {MOST_PARAMETERS:,} weights")
    else:
        differentiated = by_differentiation(problem, network)
        results.values["numbers"]["difference"] = difference = float(np.abs(differentiated - spectrum).max())
        results.add(f"by tape:     {_in_words(differentiated)}", f"largest difference: {difference:.1e}")
    # The tolerance for rounding is relative to the data, because the Hessian may be zero.
    tolerance = 1e-10 * max(np.abs(sxx).max(), 1.0)
    summary = summarize(spectrum, tolerance)
    smallest = float(np.abs(spectrum).min())
    results.add(*_describe(order, summary, smallest, tolerance))
    numbers = {"order": order, "expected_order": expected, "exponents": exponents, "parameters": parameters}
    results.values["numbers"] |= numbers | dataclasses.asdict(summary) | {"smallest_abs": smallest}


def _describe(order: int, summary: Summary, smallest: float, tolerance: float) -> list[str]:
    if summary.max_abs <= tolerance:
        return [f"the Hessian is zero: a flat point of order {order}, not a strict saddle"]
    condition = f"{summary.max_abs / smallest:.4g}" if smallest > tolerance else "infinite (singular Hessian)"
    is_saddle = "yes" if summary.smallest < -tolerance else "no"
    saddle = f"strict saddle: {is_saddle} (smallest eigenvalue {summary.smallest:.4g})"
    figures = f"largest over 10th percentile of |eigenvalues| (the figures' measure): {summary.condition:.4g}"
    return [
        f"condition number: {condition}; {figures}",
        f"index, the fraction of negative eigenvalues: {summary.index:.3f}",
        saddle if order > 0 else "zero is not a stationary point and therefore not a saddle",
    ]


def _in_words(spectrum: NDArray[np.float64]) -> str:
    """Return the extreme eigenvalues and the number of eigenvalues as text."""
    values = np.sort(spectrum)
    if np.abs(values).max() == 0:
        return f"all {len(values):,} eigenvalues are zero"
    edges = ", ".join(f"{value:.4g}" for value in values[:3])
    return f"{edges}, ... , {', '.join(f'{value:.4g}' for value in values[-3:])} ({len(values):,} eigenvalues)"
