"""Stability threshold of gradient descent: the largest stable sharpness at a given learning rate.

Full-batch descent raises the largest Hessian eigenvalue until it hovers just above this threshold, at the edge of
stability (Cohen, Kaur, Li, Kolter & Talwalkar, 2021).
"""

import keras
import numpy as np

from idmatters_tf.optimizers import Momentum


def stability_threshold(
    learning_rate: float | keras.optimizers.Optimizer | None, momentum: float = 0.0, nesterov: bool = False
) -> float | None:
    """Return the largest curvature of a quadratic on which descent at a constant rate does not diverge.

    The threshold is 2 / rate without momentum, 2 (1 + m) / rate with heavy-ball momentum m, and
    2 (1 + m) / ((1 + 2 m) rate) with Nesterov's momentum. It is the same if the rate is applied to the velocity
    (`idmatters_tf.optimizers.Momentum`, TensorFlow 1, PyTorch) or inside it (`keras.optimizers.SGD`). With
    v' = m v + g, w' = w - rate v' and g = s w both give w'' = w' + m (w' - w) - rate s w', whose characteristic
    polynomial z^2 - (1 + m - rate s) z + m leaves the unit disc at z = -1. With Nesterov's step g + m v' the polynomial
    is z^2 - (1 + m)(1 - rate s) z + m (1 - rate s).

    For an optimizer, the current rate, momentum and weight decay are used. Decoupled weight decay d shifts the
    curvature: 2 / rate - d replaces 2 / rate.

    Source: Cohen et al., *Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability*, 2021, section
    2 and appendix B.

    Args:
        learning_rate: learning rate, constant or slowly changing relative to 1 / (1 - m) steps; or a Keras optimizer in
            place of all three arguments, which may be wrapped in `keras.optimizers.LossScaleOptimizer`.
        momentum: momentum factor m, in [0, 1).
        nesterov: True for Nesterov's momentum.

    Returns:
        The threshold, or None if there is none: for None, a rate of zero, a momentum of 1, and optimizers other than
        `keras.optimizers.SGD` and `idmatters_tf.optimizers.Momentum`. (Adam preconditions the gradient, and the rate of
        `idmatters_tf.optimizers.Muon` is an angle or a step size.) Subclasses count as other optimizers.

    Raises:
        ValueError: for a number that is not a positive rate, or a momentum outside [0, 1).

    Example:

    >>> stability_threshold(0.1), round(stability_threshold(0.1, 0.9), 6), round(stability_threshold(0.1, 0.9, True), 6)
    (20.0, 38.0, 13.571429)
    """
    if learning_rate is None or isinstance(learning_rate, keras.optimizers.Optimizer):
        return _optimizer_threshold(learning_rate)
    if not learning_rate > 0:
        raise ValueError(f"Argument `learning_rate` must be positive. Received: learning_rate={learning_rate}")
    if not 0 <= momentum < 1:
        raise ValueError(f"Argument `momentum` must be in [0, 1). Received: momentum={momentum}")
    return _threshold(learning_rate, momentum, nesterov)


def _optimizer_threshold(optimizer: keras.optimizers.Optimizer | None) -> float | None:
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    # Subclasses may take different steps.
    if optimizer is None or type(optimizer) not in (keras.optimizers.SGD, Momentum):
        return None
    rate = float(np.asarray(keras.ops.convert_to_numpy(optimizer.learning_rate)))
    momentum = float(optimizer.momentum)
    if not 0 < rate < np.inf or not 0 <= momentum < 1:
        return None
    decayed = 1 - rate * (optimizer.weight_decay or 0) / 2
    return decayed * _threshold(rate, momentum, bool(optimizer.nesterov)) if decayed > 0 else None


def _threshold(rate: float, momentum: float, nesterov: bool) -> float:
    return 2 * (1 + momentum) / rate / (1 + 2 * momentum if nesterov else 1)
