"""Residual blocks on vectors, as in the theorems of the two papers, and frozen random heads.

Vectors are rows, as everywhere in Keras, so that each kernel is the transpose of the matrix in the papers.

Under a 16-bit dtype policy the branches are computed in 16 bits and added in float32, the dtype of the outputs:
bfloat16 has 8 bits, too few to add a branch of 1/1000 of its skip.
"""

import math
from typing import Unpack

import keras
import numpy as np
from keras import ops

from idmatters_tf._arguments import positive_integer, seed_number
from idmatters_tf._keras_types import Activation, Initializer, LayerOptions, Regularizer, Shape, Tensor
from idmatters_tf._seeds import reseed
from idmatters_tf.initializers import ScaledGlorot
from idmatters_tf.layers.wide import WideLayer


@keras.saving.register_keras_serializable(package="idmatters_tf")
class LinearResidual(WideLayer):
    """Linear residual layer: `h + A h`.

    Source: Hardt & Ma, *Identity Matters in Deep Learning*, Eq. 1.2. At A = 0 a chain of such layers is the
    identity. Unlike in the standard parameterization, 0 is not a bad critical point.

    Args:
        kernel_initializer: initializer of the kernel, the transpose of A; zeros by default.
        kernel_regularizer: regularizer of the kernel.

    Input shape:
        `(batch, ..., dim)`.

    Output shape:
        The same as the input shape; float32 under a 16-bit dtype policy.
    """

    def __init__(
        self,
        kernel_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.kernel_initializer: Initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def build(self, input_shape: Shape) -> None:
        dim = last_dimension(input_shape, self)
        self.kernel = self.add_kernel("kernel", (dim, dim), self.kernel_initializer)

    def call(self, inputs: Tensor) -> Tensor:
        branch = ops.matmul(self.narrow(inputs), self.narrow(self.kernel))
        return self.wide(inputs) + self.wide(branch)


@keras.saving.register_keras_serializable(package="idmatters_tf")
class ResidualDense(WideLayer):
    """Residual block with one hidden layer: `h + V relu(U h + s)`.

    Source: Hardt & Ma, *Identity Matters in Deep Learning*, Eq. 3.1 and Theorem 3.2 (v3), where the last block has no
    skip (`skip=False`).

    Args:
        units: hidden width k. The kernels are `U` of shape (dim, k) and `V` of shape (k, dim), the bias is `s` of
            shape (k,).
        activation: activation of the hidden layer.
        skip: False omits the term h.
        kernel_initializer: initializer of both kernels; `ScaledGlorot()`, near zero, if None. An integer seed is mixed
            with the number of the kernel, so that the kernels differ.
        bias_initializer: initializer of s.
        kernel_regularizer: regularizer of both kernels.
        last_kernel_initializer: initializer of V, if it differs.

    Input shape:
        `(batch, ..., dim)`.

    Output shape:
        The same as the input shape; float32 under a 16-bit dtype policy.
    """

    def __init__(
        self,
        units: int,
        activation: Activation = "relu",
        skip: bool = True,
        kernel_initializer: Initializer = None,
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer = None,
        last_kernel_initializer: Initializer = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.units = positive_integer("units", units, self)
        self.activation = keras.activations.get(activation)
        self.skip = bool(skip)
        self.kernel_initializer: Initializer = keras.initializers.get(kernel_initializer) or ScaledGlorot()
        self.bias_initializer: Initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.last_kernel_initializer: Initializer = keras.initializers.get(last_kernel_initializer)

    def build(self, input_shape: Shape) -> None:
        dim = last_dimension(input_shape, self)
        self.U = self.add_kernel("U", (dim, self.units), reseed(self.kernel_initializer, 0))
        self.s = self.add_weight(name="s", shape=(self.units,), initializer=self.bias_initializer)
        last_initializer = self.last_kernel_initializer or self.kernel_initializer
        self.V = self.add_kernel("V", (self.units, dim), reseed(last_initializer, 1))

    def call(self, inputs: Tensor) -> Tensor:
        U, s, V = map(self.narrow, (self.U, self.s, self.V))
        branch = self.wide(ops.matmul(self.activation(ops.matmul(self.narrow(inputs), U) + s), V))
        return self.wide(inputs) + branch if self.skip else branch


@keras.saving.register_keras_serializable(package="idmatters_tf")
class ShortcutUnit(WideLayer):
    """n-shortcut unit: `h + post(W_n mid(W_(n-1) ... mid(W_1 pre(h))))`.

    Source: Li et al., *Demystifying ResNet*, Definitions 2 and 3 and Eq. 5.

    Args:
        depth: depth n of the shortcut, the number of kernels.
        pre: activation before the first kernel; None is linear.
        mid: activation between kernels.
        post: activation after the last kernel.
        shortcut: False omits the term h, so that the unit is n layers of a plain network.
        kernel_initializer: initializer of every kernel; `ScaledGlorot()`, as in the paper, if None. An integer seed is
            mixed with the number of the kernel, so that the kernels differ.
        kernel_regularizer: regularizer of every kernel.

    Input shape:
        `(batch, ..., dim)`.

    Output shape:
        The same as the input shape; float32 under a 16-bit dtype policy. The attribute `kernels` is the list
        of the n kernels, the transpose of W_1 first.
    """

    def __init__(
        self,
        depth: int,
        pre: Activation = None,
        mid: Activation = None,
        post: Activation = None,
        shortcut: bool = True,
        kernel_initializer: Initializer = None,
        kernel_regularizer: Regularizer = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.depth = positive_integer("depth", depth, self)
        self.pre, self.mid, self.post = (keras.activations.get(function) for function in (pre, mid, post))
        self.shortcut = bool(shortcut)
        self.kernel_initializer: Initializer = keras.initializers.get(kernel_initializer) or ScaledGlorot()
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def build(self, input_shape: Shape) -> None:
        dim = last_dimension(input_shape, self)
        self.kernels = [
            self.add_kernel(f"kernel{number + 1}", (dim, dim), reseed(self.kernel_initializer, number))
            for number in range(self.depth)
        ]

    def call(self, inputs: Tensor) -> Tensor:
        branch = self.pre(self.narrow(inputs))
        for number, kernel in enumerate(self.kernels):
            branch = ops.matmul(branch if number == 0 else self.mid(branch), self.narrow(kernel))
        branch = self.wide(self.post(branch))
        return self.wide(inputs) + branch if self.shortcut else branch


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

    def __init__(self, units: int, seed: int = 0, **kwargs: Unpack[LayerOptions]):
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

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "units": self.units, "seed": self.seed}


def last_dimension(input_shape: Shape, layer: keras.layers.Layer) -> int:
    """Return the last size of a shape. Raise ValueError if it is unknown."""
    size = input_shape[-1]
    if size is None:
        raise ValueError(f"Layer {layer.name} needs a known last dimension. Received: input_shape={tuple(input_shape)}")
    return size
