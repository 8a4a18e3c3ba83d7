"""Gradients by TensorFlow's tape."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def gradients_of(value: Callable[[Sequence[Any]], Any], theta: Sequence[Any]) -> list[Any]:
    """The gradients of a scalar function at theta; zeros where it does not depend on a tensor."""
    theta = [tf.identity(part) for part in theta]
    with tf.GradientTape() as tape:
        tape.watch(theta)
        total = value(theta)
    found = tape.gradient(total, theta, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [tf.convert_to_tensor(gradient) for gradient in found]
