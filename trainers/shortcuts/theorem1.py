"""Li et al.'s Theorem 1 at work: the zero point of an n-shortcut network, by the closed form and by automatic
differentiation of the Keras model."""

import numpy as np

from idmatters_tf import linear
from idmatters_tf.curvature.spectrum import summarize

# mid'(0) and post'(0); ReLU has none.
SLOPES = {"linear": 1.0, "tanh": 1.0, "silu": 0.5, "gelu": 0.5}
# The most parameters for which the dense Hessian by tape is computed.
MOST_PARAMETERS = 5000


class Undefined(Exception):
    """The Hessian does not exist: ReLU has no derivative at zero."""


def slope(mid, post, relu_slope=None):
    """mid'(0) * post'(0).

    Args:
        mid, post: of `ACTIVATIONS`.
        relu_slope: taken, knowingly, in the place of ReLU's derivative at zero.

    Raises:
        Undefined: for a ReLU without it.
    """
    product = 1.0
    for place, name in (("mid", mid), ("post", post)):
        value = relu_slope if name == "relu" else SLOPES[name]
        if value is None:
            raise Undefined(
                f"the Hessian at zero is undefined: ReLU in the {place} position has no derivative at 0, where its "
                f"inputs are. Automatic differentiation takes 0 there and returns zeros, which say nothing; the "
                f"paper's 'local polynomial approximation' is a choice: --relu-slope 0.5 makes it"
            )
        product *= value
    return product


def closed_form(problem, units, n, pre, mid, post, relu_slope=None):
    """The eigenvalues at zero, ascending, or None where there is no formula (n = 1 with activations)."""
    if n == 1:
        if (pre, post) != ("linear", "linear"):
            slope("linear", post, relu_slope)
            return None
        return linear.zero_hessian_spectrum(units, 1, *problem.statistics[:2])
    factor = slope(mid, post, relu_slope)
    after = _activated(pre, problem.X)
    samples = problem.X.shape[1]
    sxx, syx = problem.X @ after.T / samples, problem.Y @ after.T / samples
    return linear.zero_hessian_spectrum(units, n, sxx, syx, factor)


def by_tape(problem, units, n, pre, mid, post):
    """The eigenvalues at zero, ascending, of the Keras model's Hessian, (units * n * d^2,)."""
    from idmatters_tf.curvature import dense_hessian

    model = zero_network(len(problem.X), units, n, pre, mid, post)
    return np.linalg.eigvalsh(dense_hessian(model, half_squares, (problem.X.T, problem.Y.T), batch_size=1000))


def zero_network(dim, units, n, pre, mid, post, shortcut=True):
    """The Keras model in float64, with all weights zero."""
    import keras

    from models.linear import shortcut_network

    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        activations = {"pre": pre, "mid": mid, "post": post}
        return shortcut_network(dim, units, n, **activations, shortcut=shortcut, kernel_initializer="zeros")
    finally:
        keras.config.set_dtype_policy(previous)


def half_squares(y, outputs):
    """||y - f(x)||^2 / 2 of each example: Li et al.'s loss (Eq. 6) is its mean."""
    import keras

    return keras.ops.sum((y - outputs) ** 2, axis=-1) / 2


def stationary_order(problem, units, n, pre, mid, post, seed=0, directions=3):
    """The order of growth of the loss along random lines through zero, less one, found numerically.

    The loss differs from that at zero by |D|^2 / (2m) - <D, Y - X> / m, D the change of the outputs, computed as such:
    a difference of the losses would cancel. The exponent comes from steps t and 2t with t^n = 1e-5.

    Returns:
        (order, exponents): a whole number, and what it was rounded from, one for each direction.
    """
    import keras

    from models.linear import assign_weights, weights_of

    model = zero_network(len(problem.X), units, n, pre, mid, post)
    shape = weights_of(model).shape
    rng = np.random.default_rng(seed)
    step = 10 ** (-5 / n)
    exponents = []
    for _ in range(directions):
        direction = rng.normal(size=shape) / np.sqrt(shape[-1])
        changes = []
        for size in (step, 2 * step):
            assign_weights(model, size * direction)
            outputs = keras.ops.convert_to_numpy(model(problem.X.T)).T
            moved = outputs - problem.X
            changes.append(np.sum(moved**2) / 2 - np.vdot(moved, problem.Y - problem.X))
        exponents.append(float(np.log2(abs(changes[1] / changes[0]))))
    return round(float(np.median(exponents))) - 1, exponents


def report(problem, units, n, pre, mid, post, relu_slope=None, seed=0):
    """Everything about the zero point: (lines of text, a dict of the numbers)."""
    dim = len(problem.X)
    parameters = units * n * dim**2
    kinked = "relu" in (post, mid if n > 1 else "linear")
    order, exponents = stationary_order(problem, units, n, pre, mid, post, seed)
    lines = [f"{units} units of {n} layers of {dim} x {dim}, {parameters:,} weights, all zero"]
    lines.append(f"activations: pre {pre}, mid {mid}, post {post}; {problem.X.shape[1]:,} examples, {problem.origin}")
    # Theorem 1 speaks of activations that vanish at zero; all offered here do.
    expected = n - 1
    if pre == mid == post == "linear":
        expected = linear.zero_stationary_order(n, *problem.statistics[:2])
    growth = f"the loss grows like t^{np.median(exponents):.3f}"
    lines.append(f"order of stationarity, measured: {order} ({growth}); by Theorem 1: {expected}")
    numbers = {"order": order, "expected_order": expected, "exponents": exponents, "parameters": parameters}
    try:
        spectrum = closed_form(problem, units, n, pre, mid, post, relu_slope)
    except Undefined as error:
        return [*lines, f"{error}."], numbers
    chosen = f" with the slope {relu_slope:g} in ReLU's place" if kinked else ""
    if spectrum is None:
        lines.append("closed form: none for n = 1 with activations")
    else:
        lines.append(f"closed form{chosen}: {_in_words(spectrum)}")
    tape = None
    if kinked:
        lines.append("by tape: left out; automatic differentiation takes ReLU's slope at zero as 0")
    elif parameters > MOST_PARAMETERS:
        lines.append(f"by tape: left out beyond {MOST_PARAMETERS:,} weights")
    else:
        tape = by_tape(problem, units, n, pre, mid, post)
        lines.append(f"by tape:     {_in_words(tape)}")
        if spectrum is not None:
            numbers["difference"] = float(np.abs(tape - spectrum).max())
            lines.append(f"largest difference: {numbers['difference']:.1e}")
    known = tape if spectrum is None else spectrum
    if known is not None:
        # What is rounding is judged by the data, for the Hessian itself may be zero.
        tolerance = 1e-10 * max(np.abs(problem.statistics.sxx).max(), 1.0)
        summary = summarize(known, tolerance)
        numbers |= summary._asdict() | {"smallest_abs": float(np.abs(known).min())}
        lines += _verdict(n, order, summary, numbers["smallest_abs"], tolerance)
    return lines, numbers


def _verdict(n, order, summary, smallest, tolerance):
    if summary.max_abs <= tolerance:
        flat = f"the Hessian is zero: a flat point of order {order}, no strict saddle"
        return [flat if n > 2 else "the Hessian is zero: the degenerate case of Theorem 1"]
    if smallest > tolerance:
        condition = f"condition number: {summary.max_abs / smallest:.4g}"
    else:
        condition = "condition number: infinite, the Hessian is singular"
    condition += f"; largest over 10th percentile of |eigenvalues| (the figures' measure): {summary.condition:.4g}"
    index = f"index, the fraction of negative eigenvalues: {summary.index:.3f}"
    if order < 1:
        return [condition, index, "zero is not a stationary point: no saddle"]
    saddle = "yes" if summary.smallest < -tolerance else "no"
    return [condition, index, f"strict saddle: {saddle} (smallest eigenvalue {summary.smallest:.4g})"]


def _activated(name, X):
    import keras

    # Keras' functions compute in the dtype of their arguments.
    return keras.ops.convert_to_numpy(keras.activations.get(name)(keras.ops.convert_to_tensor(X)))


def _in_words(spectrum):
    """The extreme and the middle eigenvalues, and how many there are."""
    values = np.sort(spectrum)
    if np.abs(values).max() == 0:
        return f"all {len(values):,} eigenvalues are zero"
    edges = ", ".join(f"{value:.4g}" for value in values[:3])
    return f"{edges}, ... , {', '.join(f'{value:.4g}' for value in values[-3:])} ({len(values):,} eigenvalues)"
