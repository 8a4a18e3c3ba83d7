"""The sharpness beyond which gradient descent at a given rate is unstable.

Full-batch descent raises the largest Hessian eigenvalue until it hovers just above this threshold, the edge of
stability (Cohen, Kaur, Li, Kolter & Talwalkar, 2021).
"""

from typing import Any, overload

import keras
import numpy as np

from idmatters_tf.optimizers import Momentum


@overload
def stability_threshold(learning_rate: float, momentum: float = 0.0, nesterov: bool = False) -> float: ...
# A type checker takes Keras' optimizers for objects of any class.
@overload
def stability_threshold(learning_rate: object) -> float | None: ...
def stability_threshold(learning_rate: Any, momentum: float = 0.0, nesterov: bool = False) -> float | None:
    """Return the largest curvature of a quadratic on which descent at a constant rate does not diverge.

    2 / rate without momentum, 2 (1 + m) / rate with heavy-ball momentum m, and 2 (1 + m) / ((1 + 2 m) rate) with
    Nesterov's. It makes no difference whether the rate is applied to the velocity (`idmatters_tf.optimizers.Momentum`,
    TensorFlow 1, PyTorch) or inside it (`keras.optimizers.SGD`): with v' = m v + g, w' = w - rate v' and g = s w both
    give w'' = w' + m (w' - w) - rate s w', whose characteristic polynomial z^2 - (1 + m - rate s) z + m leaves the unit
    disc at z = -1. With Nesterov's step g + m v' the polynomial is z^2 - (1 + m)(1 - rate s) z + m (1 - rate s).

    For an optimizer the threshold is that of its current rate, momentum and weight decay. Decoupled weight decay d
    shifts the curvature: with it, 2 / rate - d takes the place of 2 / rate.

    Source: Cohen et al., *Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability*, 2021, section
    2 and appendix B.

    Args:
        learning_rate: constant, or changing slowly against 1 / (1 - m) steps; or a Keras optimizer in place of all
            three arguments, also one inside of `keras.optimizers.LossScaleOptimizer`.
        momentum: the factor m, in [0, 1).
        nesterov: whether the step looks ahead.

    Returns:
        The threshold. None for None, and for an optimizer without a threshold on the Hessian: any that is not exactly
        `keras.optimizers.SGD` or `idmatters_tf.optimizers.Momentum` (Adam preconditions the gradient, so that another
        matrix decides; the rate of `idmatters_tf.optimizers.Muon` is an angle or the size of a step), a rate of zero,
        and a momentum of 1.

    Raises:
        ValueError: for a rate that is not positive, or a momentum outside of [0, 1), given as numbers.

    Example:

    >>> stability_threshold(0.1), round(stability_threshold(0.1, 0.9), 6), round(stability_threshold(0.1, 0.9, True), 6)
    (20.0, 38.0, 13.571429)
    """
    if learning_rate is None or isinstance(learning_rate, keras.optimizers.Optimizer):
        return _optimizer_threshold(learning_rate)
    if not learning_rate > 0:
        raise ValueError(f"Argument `learning_rate` must be positive. Received: learning_rate={learning_rate}")
    if not 0 <= momentum < 1:
        raise ValueError(f"Argument `momentum` must lie in [0, 1). Received: momentum={momentum}")
    return _threshold(learning_rate, momentum, nesterov)


def _optimizer_threshold(optimizer: Any) -> float | None:
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    # No sub-classes: each may take another step.
    if type(optimizer) not in (keras.optimizers.SGD, Momentum):
        return None
    rate = float(np.asarray(keras.ops.convert_to_numpy(optimizer.learning_rate)))
    momentum = float(optimizer.momentum)
    if not 0 < rate < np.inf or not 0 <= momentum < 1:
        return None
    decayed = 1 - rate * (optimizer.weight_decay or 0) / 2
    return decayed * _threshold(rate, momentum, bool(optimizer.nesterov)) if decayed > 0 else None


def _threshold(rate: float, momentum: float, nesterov: bool) -> float:
    return 2 * (1 + momentum) / rate / (1 + 2 * momentum if nesterov else 1)
