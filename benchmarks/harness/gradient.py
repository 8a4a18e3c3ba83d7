"""Plain gradients, the baseline of curvature products and Jacobians."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from numpy.typing import ArrayLike, NDArray


def plain_gradient(
    model: keras.Model, loss: Callable[[Any, Any], Any], x: ArrayLike, y: ArrayLike
) -> Callable[[], list[NDArray[Any]]]:
    """Return a function that computes the gradient of `loss(labels, outputs)` and waits for the result."""
    x, y = tf.constant(x), tf.constant(y)

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=False))
        return tape.gradient(value, [variable.value for variable in model.trainable_variables])

    return lambda: [part.numpy() for part in gradient()]
