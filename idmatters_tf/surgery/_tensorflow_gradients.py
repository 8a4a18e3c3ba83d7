"""Gradients by TensorFlow's tape."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from idmatters_tf.curvature._tapes import gradient


def gradients_of(value: Callable[[Sequence[Any]], Any], theta: Sequence[Any]) -> list[Any]:
    """The gradients of a scalar function at theta; zeros where it does not depend on a tensor."""
    theta = [tf.identity(part) for part in theta]
    with tf.GradientTape() as tape:
        tape.watch(theta)
        total = value(theta)
    return gradient(tape, total, theta)
