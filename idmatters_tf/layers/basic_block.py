"""Basic blocks of residual networks with batch normalization, the baselines of the papers."""

from typing import Any

import keras
from keras import ops

from idmatters_tf._arguments import check_choice, positive_integer
from idmatters_tf._keras_types import Initializer, Regularizer, Shape, Tensor
from idmatters_tf.initializers import reseed
from idmatters_tf.layers._arguments import serialize_arguments
from idmatters_tf.layers._image_shapes import channel_axis, channels, resolve_data_format, strided_shape
from idmatters_tf.layers.convolutional import SHORTCUTS, PadShortcut2D


@keras.saving.register_keras_serializable(package="idmatters_tf")
class BasicBlock2D(keras.layers.Layer):
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
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.filters = positive_integer("filters", filters, self)
        self.strides = positive_integer("strides", strides, self)
        self.preactivation = check_choice("preactivation", preactivation, (None, "branch", "both"), self)
        self.shortcut = check_choice("shortcut", shortcut, SHORTCUTS, self)
        self.norm = check_choice("norm", norm, ("batch", "synchronized"), self)
        default = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
        self.kernel_initializer: Initializer = keras.initializers.get(kernel_initializer) or default
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.norm_regularizer = keras.regularizers.get(norm_regularizer)
        self.data_format = resolve_data_format(data_format, self)
        self.conv1 = self._convolution("conv1", 0, self.strides)
        self.conv2 = self._convolution("conv2", 1)
        # The normalizations precede or follow the convolutions, depending on `preactivation`.
        self.norm1, self.norm2 = (self._normalization(name) for name in ("norm1", "norm2"))
        self.skip: keras.layers.Layer | None = None
        self.skip_norm: keras.layers.BatchNormalization | None = None

    def _convolution(self, name: str, number: int, strides: int = 1, side: int = 3) -> keras.layers.Conv2D:
        return keras.layers.Conv2D(
            self.filters,
            side,
            strides=strides,
            padding="same",
            use_bias=False,
            kernel_initializer=reseed(self.kernel_initializer, number),
            kernel_regularizer=self.kernel_regularizer,
            data_format=self.data_format,
            dtype=self.dtype_policy,
            name=name,
        )

    def _normalization(self, name: str) -> keras.layers.BatchNormalization:
        return batch_normalization(
            self.norm_regularizer, self.norm, data_format=self.data_format, dtype=self.dtype_policy, name=name
        )

    def build(self, input_shape: Shape) -> None:
        inner_shape = self.compute_output_shape(input_shape)
        changes_shape = self.strides > 1 or channels(input_shape, self) != self.filters
        if changes_shape and self.shortcut == "pad":
            self.skip = PadShortcut2D(
                self.filters, self.strides, "none", self.data_format, dtype=self.dtype_policy, name="skip"
            )
        elif changes_shape and self.shortcut == "projection":
            self.skip = self._convolution("skip", 2, self.strides, side=1)
            if self.preactivation is None:
                self.skip_norm = self._normalization("skip_norm")
                self.skip_norm.build(inner_shape)
        if self.skip is not None:
            self.skip.build(input_shape)
        self.norm1.build(input_shape if self.preactivation else inner_shape)
        self.conv1.build(input_shape)
        self.norm2.build(inner_shape)
        self.conv2.build(inner_shape)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        if self.preactivation:
            active = ops.relu(self.norm1(inputs, training=training))
            if self.preactivation == "both":
                inputs = active
            branch = self.conv2(ops.relu(self.norm2(self.conv1(active), training=training)))
        else:
            branch = ops.relu(self.norm1(self.conv1(inputs), training=training))
            branch = self.norm2(self.conv2(branch), training=training)
        if self.shortcut != "none":
            skip = inputs if self.skip is None else self.skip(inputs)
            if self.skip_norm is not None:
                skip = self.skip_norm(skip, training=training)
            branch = branch + ops.cast(skip, branch.dtype)
        return branch if self.preactivation else ops.relu(branch)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return strided_shape(input_shape, self)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **serialize_arguments(self, BasicBlock2D)}


def batch_normalization(
    regularizer: Regularizer, norm: str = "batch", data_format: str | None = None, **kwargs: Any
) -> keras.layers.BatchNormalization:
    """Return a batch normalization with the constants of the published Torch code.

    Args:
        regularizer: regularizer of scale and shift.
        norm: "batch", or "synchronized" for statistics over all replicas.
        data_format: "channels_last", "channels_first" or None for Keras' setting.
        kwargs: see `keras.layers.BatchNormalization`.
    """
    return keras.layers.BatchNormalization(
        momentum=0.9,
        epsilon=1e-5,
        gamma_regularizer=regularizer,
        beta_regularizer=regularizer,
        synchronized=norm == "synchronized",
        axis=channel_axis(data_format),
        **kwargs,
    )
