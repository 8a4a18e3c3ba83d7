"""Theorem 1 of Li et al.: zero point of an n-shortcut network, in closed form and by automatic differentiation."""

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf import linear
from idmatters_tf._keras_types import Tensor
from idmatters_tf.curvature import dense_hessian, summarize
from idmatters_tf.models.linear import assign_weights, get_weights, shortcut_network
from trainers.experiments.program import Results, Verdict
from trainers.shortcuts.settings import Theorem1
from trainers.shortcuts.training import CLASSES, Regression

# Derivatives at zero.
SLOPES = {"linear": 1.0, "tanh": 1.0, "silu": 0.5, "gelu": 0.5}
# Largest number of parameters for which automatic differentiation computes the dense Hessian.
MOST_PARAMETERS = 5000


def closed_form(problem: Regression, network: Theorem1) -> NDArray[np.float64]:
    """Return the eigenvalues at zero in ascending order."""
    # At zero every unit receives the inputs of the network.
    inputs = np.asarray(keras.ops.convert_to_numpy(keras.activations.get(network.pre)(problem.X)), np.float64)
    sxx, syx = (of @ inputs.T / inputs.shape[1] for of in (problem.X, problem.Y))
    slope = SLOPES[network.mid] * SLOPES[network.post]
    return linear.zero_hessian_spectrum(network.units, network.shortcut_depth, sxx, syx, slope=slope)


def by_differentiation(problem: Regression, network: Theorem1) -> NDArray[np.float64]:
    """Return the eigenvalues of the Keras model's Hessian at zero, ascending, (units * shortcut_depth * d^2,)."""
    hessian = dense_hessian(_zero_model(network), half_squares, (problem.X.T, problem.Y.T), batch_size=1000)
    return np.asarray(np.linalg.eigvalsh(hessian), np.float64)


def _zero_model(network: Theorem1) -> keras.Model:
    activations = network.pre, network.mid, network.post
    return shortcut_network(CLASSES, network.units, network.shortcut_depth, *activations, kernel_initializer="zeros")


def half_squares(y: Tensor, outputs: Tensor) -> Tensor:
    """Return ||y - f(x)||^2 / 2 of each example. Its mean is Li et al.'s loss (Eq. 6)."""
    return keras.ops.sum((y - outputs) ** 2, axis=-1) / 2  # pyright: ignore[reportOptionalOperand]


def stationary_order(problem: Regression, network: Theorem1) -> tuple[int, list[float]]:
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


def run(problem: Regression, options: Theorem1, results: Results) -> None:
    """Analyze the zero point, and compare its order and its Hessian with Theorem 1."""
    problem = problem.first(options.samples)
    n, dim = options.shortcut_depth, len(problem.X)
    order, exponents = stationary_order(problem, options)
    sxx, syx, _ = problem.statistics
    # Theorem 1 assumes activations that vanish at zero, as all of `SLOPES` do.
    is_linear = options.pre == options.mid == options.post == "linear"
    expected = linear.zero_stationary_order(n, sxx, syx) if is_linear else n - 1
    spectrum = closed_form(problem, options)
    # The tolerance for rounding is relative to the data, because the Hessian may be zero.
    tolerance = 1e-10 * max(np.abs(sxx).max(), 1.0)
    summary = summarize(spectrum, tolerance)
    numbers: dict[str, float] = {"order": order, "by Theorem 1": expected, "exponent": float(np.median(exponents))}
    numbers |= {"weights": options.units * n * dim**2, "smallest eigenvalue": float(summary.smallest)}
    numbers |= {"largest": float(summary.largest), "smallest magnitude": float(np.abs(spectrum).min())}
    numbers |= {"condition": float(summary.condition), "index": float(summary.index)}
    difference = 0.0
    if numbers["weights"] <= MOST_PARAMETERS:
        difference = float(np.abs(by_differentiation(problem, options) - spectrum).max())
        numbers["largest difference"] = difference
    claim = (
        f"{options.units} units of {n} layers have the order of stationarity of Theorem 1 at zero, and the Hessian by "
    )
    claim += "automatic differentiation the eigenvalues of the closed form"
    results.add(Verdict("zero", order == expected and difference < tolerance, claim, numbers))
