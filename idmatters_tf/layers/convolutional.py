"""Residual convolutions near the identity: x + C2(relu(C1 x))."""

from typing import Unpack

import keras
from keras import ops

from idmatters_tf._arguments import check_choice, positive_integer
from idmatters_tf._conventions import batch_normalization, wide_dtype
from idmatters_tf._keras_types import Activation, Initializer, LayerOptions, Regularizer, Shape, Tensor
from idmatters_tf.initializers import IdentityNormal, StandardNormal
from idmatters_tf.layers.images import ConvolutionBlock, ImageLayer

SHORTCUTS = ("pad", "projection", "none")
NORMS = (None, "batch", "synchronized")


@keras.saving.register_keras_serializable(package="idmatters_tf")
class PadShortcut2D(ImageLayer):
    """Shortcut without parameters for residual branches that change the shape: pooling, then zero channels.

    Half of the zero channels are added on each side; an odd one is added at the end. With stride 1 and the width of the
    input, the outputs are the inputs.

    Source: the base code of Hardt & Ma (tensorflow/models `resnet`, 2016), which pools; option A of He et al. (2015),
    which subsamples.

    Args:
        filters: number of output channels, at least that of the input.
        strides: stride of the pooling, a positive integer.
        pooling: "average" over windows as large as the stride, or "none" to keep the first pixel of each window.
        data_format: "channels_last", "channels_first" or None for Keras' setting.

    Input shape:
        `(batch, rows, cols, channels)`, or `(batch, channels, rows, cols)` with "channels_first". Rows and columns may
        be unknown. If the stride does not divide a size, the quotient is rounded up and the last window is smaller.

    Output shape:
        `(batch, ceil(rows / strides), ceil(cols / strides), filters)`, or with the channels first.
    """

    def __init__(
        self,
        filters: int,
        strides: int = 1,
        pooling: str = "average",
        data_format: str | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(filters, strides, data_format, autocast=False, **kwargs)
        self.pooling = check_choice("pooling", pooling, ("average", "none"), self)

    def build(self, input_shape: Shape) -> None:
        self.check_widening(input_shape, ". Use shortcut='projection' to narrow.")

    def call(self, inputs: Tensor) -> Tensor:
        outputs = ops.cast(inputs, wide_dtype(self))
        return self.pad_channels(self.pool(outputs, self.strides if self.pooling == "average" else 1))


def make_skip(
    block: ConvolutionBlock, input_shape: Shape, pooling: str, initializer: Initializer = None
) -> keras.layers.Layer | None:
    """Return the built skip of a `ConvolutionBlock` with the attribute `shortcut`; None for the identity or no skip."""
    if block.shortcut == "none" or (block.strides == 1 and block.input_channels(input_shape) == block.filters):
        return None
    if block.shortcut == "pad":
        policy = block.dtype_policy
        skip = PadShortcut2D(block.filters, block.strides, pooling, block.data_format, dtype=policy, name="skip")
    else:
        skip = block.convolution("skip", 2, 1, block.strides, initializer, use_bias=False)
    skip.build(input_shape)
    return skip


@keras.saving.register_keras_serializable(package="idmatters_tf")
class ResidualConv2D(ConvolutionBlock):
    """Residual block of two convolutions with one activation between them: `x + C2(activation(C1 x))`.

    With the default initializer the block starts near the identity. Under a 16-bit dtype policy the convolutions are
    computed in 16 bits and the sum in float32: bfloat16 has 8 bits, too few to add a branch of 1/1000 of its skip.

    Source: Hardt & Ma, *Identity Matters in Deep Learning*, section 4.1 and Table 1.

    Args:
        filters: number of output channels of both convolutions.
        kernel_size: side of the kernels.
        strides: stride of the first convolution. The second one has stride 1.
        activation: activation between the two convolutions.
        use_bias: True for biases in the two convolutions. The projection shortcut never has one.
        shortcut: skip to which the branch is added. It is the input unless the shape changes; then it is the input
            pooled and padded by `PadShortcut2D` with "pad", and a 1x1 convolution with "projection". "none" omits the
            skip, for the standard parameterization `C2(activation(C1 x))`.
        norm: None, or "batch" for batch normalization after each of the two convolutions (the paper's ablation), or
            "synchronized" for the same with statistics over all replicas of a `tf.distribute` strategy (TensorFlow
            only).
        norm_first: True to normalize the inputs of the convolutions instead of their outputs, as in the base code of
            Hardt & Ma: `x + C2(activation(BN(C1 BN(x))))`.
        norm_momentum: momentum of the moving averages of batch normalization; 0.9 in that code.
        branch_scale: None, or the initial value of a trained factor on the branch, `x + scale * C2(...)`. 0.0 is
            SkipInit (De & Smith, 2020) and ReZero (Bachlechner et al., 2020), 1.0 is Fixup's multiplier.
        kernel_initializer: initializer of both kernels of the branch; `IdentityNormal()` if None. An integer seed is
            mixed with the number of the kernel, so that the kernels differ.
        last_kernel_initializer: initializer of the second kernel, if it differs.
        projection_initializer: initializer of the 1x1 kernel of the projection shortcut; `StandardNormal()` if None.
        kernel_regularizer: regularizer of all kernels.
        data_format: "channels_last", "channels_first" or None for Keras' setting.

    Input shape:
        `(batch, rows, cols, channels)`, or `(batch, channels, rows, cols)` with "channels_first"; rows and columns may
        be unknown.

    Output shape:
        `(batch, ceil(rows / strides), ceil(cols / strides), filters)`, or with the channels first.

    Example:

    >>> block = ResidualConv2D(64, strides=2)
    >>> tuple(block(keras.ops.ones((1, 32, 32, 16))).shape)
    (1, 16, 16, 64)
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int = 3,
        strides: int = 1,
        activation: Activation = "relu",
        use_bias: bool = False,
        shortcut: str = "pad",
        norm: str | None = None,
        norm_first: bool = False,
        norm_momentum: float = 0.99,
        branch_scale: float | None = None,
        kernel_initializer: Initializer = None,
        last_kernel_initializer: Initializer = None,
        projection_initializer: Initializer = None,
        kernel_regularizer: Regularizer = None,
        data_format: str | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(filters, strides, data_format, autocast=False, **kwargs)
        self.kernel_size = positive_integer("kernel_size", kernel_size, self)
        self.activation = keras.activations.get(activation)
        self.use_bias = bool(use_bias)
        self.shortcut = check_choice("shortcut", shortcut, SHORTCUTS, self)
        self.norm = check_choice("norm", norm, NORMS, self)
        self.norm_first = self.normalizes_inputs = bool(norm_first)
        self.norm_momentum = float(norm_momentum)
        self.branch_scale = None if branch_scale is None else float(branch_scale)
        self.kernel_initializer = keras.initializers.get(kernel_initializer) or IdentityNormal()
        self.last_kernel_initializer: Initializer = keras.initializers.get(last_kernel_initializer)
        self.projection_initializer: Initializer = keras.initializers.get(projection_initializer) or StandardNormal()
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.conv1 = self.convolution("conv1", 0, self.kernel_size, self.strides, use_bias=self.use_bias)
        last = self.last_kernel_initializer
        self.conv2 = self.convolution("conv2", 1, self.kernel_size, initializer=last, use_bias=self.use_bias)
        if self.norm is not None:
            options = {"momentum": self.norm_momentum, "dtype": self.dtype_policy}
            self.norm1 = batch_normalization(self.norm, None, self.data_format, name="norm1", **options)
            self.norm2 = batch_normalization(self.norm, None, self.data_format, name="norm2", **options)
        self.skip: keras.layers.Layer | None = None
        self.scale: keras.Variable | None = None

    def build(self, input_shape: Shape) -> None:
        self.skip = make_skip(self, input_shape, "average", self.projection_initializer)
        super().build(input_shape)
        if self.branch_scale is not None:
            initializer = keras.initializers.Constant(self.branch_scale)
            self.scale = self.add_weight(name="scale", shape=(), initializer=initializer)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        dtype = wide_dtype(self)
        branch: Tensor = ops.cast(self.branch(inputs, training), dtype)
        if self.scale is not None:
            branch *= ops.cast(self.scale, dtype)
        if self.shortcut == "none":
            return branch
        skip: Tensor = ops.cast(inputs if self.skip is None else self.skip(inputs), dtype)
        return skip + branch
