"""Gradients of random linear functions of a network's outputs."""

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
    """Return the gradients of `sum(c * layer(inputs))` with respect to some variables, with c standard normal.

    The state of the layer does not change, neither moving averages nor random seeds.

    Args:
        layer: built layer or model.
        inputs: inputs of the layer.
        variables: trainable variables of the layer.
        seed: seed of c.

    Returns:
        One array for each variable, of its shape.

    Raises:
        ValueError: if the backend is neither TensorFlow nor JAX.
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
