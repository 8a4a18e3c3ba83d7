"""Convolutions with trained gains on their kernels."""

from collections.abc import MutableMapping
from typing import Any, Unpack

import keras
from keras import ops

from idmatters_tf._arguments import positive_integer
from idmatters_tf._keras_types import Activation, Initializer, LayerOptions, Regularizer, Shape, Tensor
from idmatters_tf.layers.images import ConvolutionBlock


@keras.saving.register_keras_serializable(package="idmatters_tf")
class ScaledConv2D(keras.layers.Conv2D):
    """Convolution with a trained gain for each output channel: `convolution(x, gain * kernel) + bias`.

    The gains multiply the kernel instead of the outputs, at negligible cost. With kernels of constant norm
    (`idmatters_tf.optimizers.Muon`), the gains determine the scale of the outputs, as those of batch normalization do.

    Source: Brock et al., *Characterizing signal propagation to close the performance gap in unnormalized ResNets*
    (2021), section 4.1, who apply the gains to standardized kernels.

    Args:
        filters, kernel_size, kwargs: see `keras.layers.Conv2D`.
        gain: initial value of the gains.

    Input shape:
        `(batch, rows, cols, channels)`, or `(batch, channels, rows, cols)` with "channels_first".

    Output shape:
        See `keras.layers.Conv2D`.
    """

    def __init__(self, filters: int, kernel_size: int, gain: float = 1.0, **kwargs: Any) -> None:
        super().__init__(filters, kernel_size, **kwargs)
        self.gain = float(gain)

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        self.gains = self.add_weight(
            name="gains", shape=(self.filters,), initializer=keras.initializers.Constant(self.gain)
        )

    @property
    def applied_kernel(self) -> Tensor:
        """Kernel of the convolution: the gains times the kernel."""
        return self.gains * ops.cast(self.kernel, self.gains.dtype)

    def convolution_op(self, inputs: Tensor, kernel: Tensor) -> Tensor:
        gains: Tensor = ops.cast(self.gains, inputs.dtype)
        return super().convolution_op(inputs, gains * ops.cast(kernel, inputs.dtype))

    # Keras' convolutions save only the kernel and the bias.
    def save_own_variables(self, store: MutableMapping[str, object]) -> None:
        keras.layers.Layer.save_own_variables(self, store)

    def load_own_variables(self, store: MutableMapping[str, object]) -> None:
        keras.layers.Layer.load_own_variables(self, store)

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "gain": self.gain}


@keras.saving.register_keras_serializable(package="idmatters_tf")
class ScaledResidualConv2D(ConvolutionBlock):
    """Residual block with trained gains on both kernels: `x + C2(activation(C1 x))`, with biases.

    This form of Hardt & Ma's block trains fast without normalization layers. The kernels are initialized as in He et
    al. (2015). Use an optimizer that keeps their norm (`idmatters_tf.optimizers.Muon`). The gains of the second kernel,
    initially `branch_gain`, determine the distance of the block from the identity. 0 is SkipInit (De & Smith, 2020) for
    each channel; 0.2 is the alpha of Brock et al. (2021).

    Under 16-bit policies the sum has the compute dtype, for speed, unlike in `ResidualConv2D`. Branches of a fifth of
    their skips are large enough for this precision.

    Args:
        filters: number of output channels of both convolutions, at least that of the input.
        kernel_size: side of the kernels.
        last_kernel_size: side of the second kernel, if it differs.
        strides: stride of the first convolution. The skip is average-pooled over windows of this size.
        activation: activation between the two convolutions.
        branch_gain: initial value of the gains of the second kernel.
        kernel_initializer: initializer of both kernels; `HeNormal(seed)` if None.
        kernel_regularizer: regularizer of both kernels, without their gains.
        seed: seed of the default initializer.
        data_format: "channels_last", "channels_first" or None for Keras' setting.

    Input shape:
        `(batch, rows, cols, channels)`, or `(batch, channels, rows, cols)` with "channels_first"; rows and columns may
        be unknown.

    Output shape:
        `(batch, ceil(rows / strides), ceil(cols / strides), filters)`, or with the channels first.

    Example:

    >>> block = ScaledResidualConv2D(64, strides=2)
    >>> tuple(block(keras.ops.ones((1, 32, 32, 16))).shape)
    (1, 16, 16, 64)
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int = 3,
        strides: int = 1,
        activation: Activation = "relu",
        branch_gain: float = 0.2,
        last_kernel_size: int | None = None,
        kernel_initializer: Initializer = None,
        kernel_regularizer: Regularizer = None,
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(filters, strides, data_format, **kwargs)
        self.kernel_size = positive_integer("kernel_size", kernel_size, self)
        self.last_kernel_size = None
        if last_kernel_size is not None:
            self.last_kernel_size = positive_integer("last_kernel_size", last_kernel_size, self)
        self.activation = keras.activations.get(activation)
        self.branch_gain = float(branch_gain)
        self.kernel_initializer = keras.initializers.get(kernel_initializer) or keras.initializers.HeNormal(seed)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.seed = seed
        last_size = self.last_kernel_size or self.kernel_size
        self.conv1 = self.convolution("conv1", 0, self.kernel_size, self.strides, kind=ScaledConv2D)
        self.conv2 = self.convolution("conv2", 1, last_size, kind=ScaledConv2D, gain=self.branch_gain)

    def build(self, input_shape: Shape) -> None:
        self.check_widening(input_shape)
        super().build(input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        return self.pad_channels(self.pool(inputs, self.strides)) + self.branch(inputs)
