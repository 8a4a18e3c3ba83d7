"""Frozen random heads, as in Hardt & Ma's networks."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from idmatters_tf._arguments import positive_integer, seed_number
from idmatters_tf._keras_types import Shape, Tensor
from idmatters_tf.layers.dense import last_dimension


@keras.saving.register_keras_serializable(package="idmatters_tf")
class RandomProjection(keras.layers.Layer):
    """Fixed random matrix: `x @ P` with an untrained P drawn from N(0, 1 / fan_in).

    The matrix is saved with the model. It depends only on the seed and the shape, so that it is the same on every
    backend, device and replica. With 256 features of unit scale the initial logits are near 0 and the loss is near
    ln(classes); a head with N(0, 1) would multiply all gradients by 16.

    Source: Hardt & Ma, *Identity Matters in Deep Learning*, section 4.1 ("random projection, not trained"). The paper
    does not state the variance.

    Args:
        units: size of the outputs.
        seed: non-negative integer.

    Input shape:
        `(batch, ..., fan_in)` with a known last dimension.

    Output shape:
        `(batch, ..., units)`.

    Example:

    >>> head = RandomProjection(10, seed=0)
    >>> tuple(head(keras.ops.ones((2, 256))).shape), len(head.trainable_variables), len(head.non_trainable_variables)
    ((2, 10), 0, 1)
    """

    def __init__(self, units: int, seed: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.units = positive_integer("units", units, self)
        self.seed = seed_number(seed, self)

    def build(self, input_shape: Shape) -> None:
        fan_in = last_dimension(input_shape, self)
        self.kernel = self.add_weight(
            name="kernel", shape=(fan_in, self.units), initializer=self._initial_kernel, trainable=False
        )

    def _initial_kernel(self, shape: tuple[int, ...], dtype: str | None = None) -> Tensor:
        # The generators of TensorFlow and JAX return different numbers for the same seed; NumPy's is common to both.
        normal = np.random.default_rng(self.seed).standard_normal(shape) / math.sqrt(shape[0])
        return ops.convert_to_tensor(normal, dtype=dtype)

    def call(self, inputs: Tensor) -> Tensor:
        return ops.matmul(inputs, self.kernel)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units, "seed": self.seed}
