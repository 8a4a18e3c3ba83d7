"""Convolutions whose kernels are multiplied by trained gains, standardised first where asked for."""

from typing import Any

import keras
from keras import ops

# Of rectified standard normal numbers: sqrt(2 / (1 - 1 / pi)), Brock et al. (2021), section 4.1.
RELU_GAIN = 1.7128585504496627
_EPSILON = 1e-4


@keras.saving.register_keras_serializable(package="idmatters_tf")
class ScaledConv2D(keras.layers.Conv2D):
    """A convolution with a trained gain for each output channel: `convolution(x, gain * kernel) + bias`.

    The gains multiply the kernel, not the outputs, which costs nothing next to the convolution. With kernels of
    constant norm (`idmatters_tf.muon.Muon`) or standardised ones the gains are what sets the scale of the outputs, as
    those of batch normalisation do.

    Source: Brock et al., *Characterizing signal propagation to close the performance gap in unnormalized ResNets*
    (2021), Eq. 3, for `standardize=True`, which replaces each output channel's kernel W by
    `1.71 (W - mean) / sqrt(fan_in * variance)`, over its fan_in entries; the paper's gain is the same.

    Args:
        filters, kernel_size, kwargs: as for `keras.layers.Conv2D`.
        gain: where the gains start.
        standardize: whether each output channel's kernel is standardised first.

    Input shape:
        `(batch, rows, cols, channels)`, or `(batch, channels, rows, cols)` with "channels_first".

    Output shape:
        As for `keras.layers.Conv2D`.
    """

    def __init__(
        self, filters: int, kernel_size: int, gain: float = 1.0, standardize: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(filters, kernel_size, **kwargs)
        self.gain = float(gain)
        self.standardize = bool(standardize)

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        self.gains = self.add_weight(
            name="gains", shape=(self.filters,), initializer=keras.initializers.Constant(self.gain)
        )

    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        if self.standardize:
            kernel = ops.cast(self._kernel, "float32")
            fan_in = kernel.shape[0] * kernel.shape[1] * kernel.shape[2]
            centred = kernel - ops.mean(kernel, axis=(0, 1, 2), keepdims=True)
            variance = ops.mean(ops.square(centred), axis=(0, 1, 2), keepdims=True)
            kernel = RELU_GAIN * centred * ops.rsqrt(fan_in * variance + _EPSILON)
        kernel = ops.cast(kernel, inputs.dtype) * ops.cast(self.gains, inputs.dtype)
        return super().convolution_op(inputs, kernel)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "gain": self.gain, "standardize": self.standardize}
