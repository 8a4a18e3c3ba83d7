"""The gradient of a random linear function of a network's outputs."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from idmatters_tf._keras_types import Tensor
from idmatters_tf.autodiff import gradient


def gradients(
    layer: keras.layers.Layer, inputs: Any, variables: Sequence[keras.Variable], seed: int = 0
) -> list[NDArray[np.floating[Any]]]:
    """Return the gradients of `sum(c * layer(inputs))` by some of its variables, c standard normal.

    Nothing of the layer is changed: neither moving averages nor the states of random generators.

    Args:
        layer: a built layer or model.
        inputs: as for a call of it.
        variables: trainable ones of the layer.
        seed: of c.

    Returns:
        For each variable an array of its shape.

    Raises:
        ValueError: for a backend other than TensorFlow and JAX.
    """

    def value(_: Any) -> Tensor:
        rng, total = np.random.default_rng(seed), ops.zeros(())
        for output in keras.tree.flatten(layer(inputs, training=False)):
            if keras.backend.is_float_dtype(keras.backend.standardize_dtype(output.dtype)):
                output: Tensor = ops.cast(output, "float32")
                cotangent = rng.normal(size=tuple(output.shape)).astype("float32")
                total: Tensor = total + ops.sum(output * cotangent)
        return ops.cast(total, "float32")

    return [np.asarray(ops.convert_to_numpy(part)) for part in gradient(value, list(variables))]
