"""Basic blocks of residual networks with batch normalization, the baselines of the papers."""

from collections.abc import Callable
from typing import Unpack

import keras
from keras import ops

from idmatters_tf._arguments import check_choice
from idmatters_tf._conventions import batch_normalization
from idmatters_tf._keras_types import Initializer, LayerOptions, Options, Regularizer, Shape, Tensor
from idmatters_tf.layers.convolutional import SHORTCUTS, make_skip
from idmatters_tf.layers.images import ConvolutionBlock

# Constants of batch normalization in the published Torch code.
TORCH_NORM: Options = {"momentum": 0.9, "epsilon": 1e-5}


@keras.saving.register_keras_serializable(package="idmatters_tf")
class BasicBlock2D(ConvolutionBlock):
    """Basic block of He et al.: two normalized 3x3 convolutions and a skip, in both of its forms.

    - `preactivation=None`: `relu(x + BN(C2 relu(BN(C1 x))))`, He et al. (2015), Figure 2.
    - `preactivation="branch"`: `x + C2 relu(BN(C1 relu(BN x)))`, He et al. (2016), Figure 4 (e).
    - `preactivation="both"`: the same with `relu(BN x)` in place of x on both paths, for the first block of a network.

    If the shape changes, the skip takes every second pixel (for stride 2) and adds zero channels (option A of the 2015
    paper), or is a 1x1 convolution (option B), normalized unless the block is pre-activated. The momentum of the moving
    averages is 0.9, as in the published Torch code.

    Args:
        filters: number of output channels of both convolutions.
        strides: stride of the first convolution.
        preactivation: None, "branch" or "both".
        shortcut: "pad" or "projection" for changes of shape; "none" omits all skips (the plain networks of the 2015
            paper).
        norm: "batch" for batch normalization, or "synchronized" for the same with statistics over all replicas of a
            `tf.distribute` strategy (TensorFlow only).
        kernel_initializer: initializer of both kernels. None is He's normal distribution scaled by the fan-out, as in
            the published code. An integer seed is mixed with the number of the kernel.
        kernel_regularizer: regularizer of both kernels.
        norm_regularizer: regularizer of the scales and shifts of both normalizations.
        data_format: "channels_last", "channels_first" or None for Keras' setting.

    Input shape:
        `(batch, rows, cols, channels)`, or `(batch, channels, rows, cols)` with "channels_first"; rows and columns may
        be unknown.

    Output shape:
        `(batch, ceil(rows / strides), ceil(cols / strides), filters)`, or with the channels first.

    Example:

    >>> tuple(BasicBlock2D(32, strides=2)(keras.ops.ones((1, 32, 32, 16))).shape)
    (1, 16, 16, 32)
    """

    def __init__(
        self,
        filters: int,
        strides: int = 1,
        preactivation: str | None = None,
        shortcut: str = "pad",
        norm: str = "batch",
        kernel_initializer: Initializer = None,
        kernel_regularizer: Regularizer = None,
        norm_regularizer: Regularizer = None,
        data_format: str | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(filters, strides, data_format, **kwargs)
        self.preactivation = check_choice("preactivation", preactivation, (None, "branch", "both"), self)
        self.shortcut = check_choice("shortcut", shortcut, SHORTCUTS, self)
        self.norm = check_choice("norm", norm, ("batch", "synchronized"), self)
        default = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
        self.kernel_initializer = keras.initializers.get(kernel_initializer) or default
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.norm_regularizer = keras.regularizers.get(norm_regularizer)
        self.activation = ops.relu
        self.normalizes_inputs = preactivation is not None
        self.conv1 = self.convolution("conv1", 0, 3, self.strides, use_bias=False)
        self.conv2 = self.convolution("conv2", 1, 3, use_bias=False)
        self.norm1 = self._normalization("norm1")
        self.norm2 = self._normalization("norm2")
        self.skip: keras.layers.Layer | None = None
        self.skip_norm: keras.layers.BatchNormalization | None = None

    def _normalization(self, name: str) -> keras.layers.BatchNormalization:
        regularizer, policy = self.norm_regularizer, self.dtype_policy
        return batch_normalization(self.norm, regularizer, self.data_format, dtype=policy, name=name, **TORCH_NORM)

    def build(self, input_shape: Shape) -> None:
        self.skip = make_skip(self, input_shape, "none")
        if self.skip is not None and self.shortcut == "projection" and self.preactivation is None:
            self.skip_norm = self._normalization("skip_norm")
            self.skip_norm.build(self.compute_output_shape(input_shape))
        super().build(input_shape)

    def branch_steps(self) -> list[Callable[..., Tensor]]:
        # The first normalization of a pre-activated block may be on both paths.
        return super().branch_steps()[1 if self.preactivation else 0 :]

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        active = self.activation(self.norm1(inputs, training=training)) if self.preactivation else inputs
        branch = self.branch(active, training)
        if self.shortcut != "none":
            skip = active if self.preactivation == "both" else inputs
            skip = skip if self.skip is None else self.skip(skip)
            if self.skip_norm is not None:
                skip = self.skip_norm(skip, training=training)
            branch = branch + ops.cast(skip, branch.dtype)
        return branch if self.preactivation else ops.relu(branch)
