"""The basic blocks of the residual networks with batch normalisation that the papers compare with."""

import keras
from keras import ops

from idmatters_tf.arguments import one_of, positive_integer
from idmatters_tf.initializers import reseeded
from idmatters_tf.layers.convolutional import PadShortcut2D


@keras.saving.register_keras_serializable(package="idmatters_tf")
class BasicBlock2D(keras.layers.Layer):
    """Two normalised 3x3 convolutions and a skip: He et al.'s basic block, in both of its forms.

    - `preactivation=None`: `relu(x + BN(C2 relu(BN(C1 x))))`, He et al. (2015), Figure 2.
    - `preactivation="branch"`: `x + C2 relu(BN(C1 relu(BN x)))`, He et al. (2016), Figure 4 (e).
    - `preactivation="both"`: the same with `relu(BN x)` in place of x on both paths, the first block of a network.

    Where the shape changes the skip takes every second pixel (for stride 2) and adds zero channels (option A of the
    2015 paper). As in the published Torch code the moving averages have momentum 0.9.

    Args:
        filters: output channels of both convolutions.
        strides: the stride of the first convolution.
        preactivation: None, "branch" or "both".
        shortcut: "pad", or "none" to leave the skip out (the plain networks of the 2015 paper).
        synchronized: whether the normalisations take their statistics over all replicas of a `tf.distribute` strategy.
        kernel_initializer: of both kernels; if None He's normal distribution by the outputs' number, as in the
            published code. An integer seed is mixed with the kernel's number.
        regularizer: of the kernels and of the normalisations' parameters.

    Input shape:
        `(batch, rows, cols, channels)`; rows and columns may be unknown.

    Output shape:
        `(batch, ceil(rows / strides), ceil(cols / strides), filters)`.

    Example:

    >>> tuple(BasicBlock2D(32, strides=2)(keras.ops.ones((1, 32, 32, 16))).shape)
    (1, 16, 16, 32)
    """

    def __init__(
        self,
        filters,
        strides=1,
        preactivation=None,
        shortcut="pad",
        synchronized=False,
        kernel_initializer=None,
        regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.filters = positive_integer("filters", filters, self)
        self.strides = positive_integer("strides", strides, self)
        self.preactivation = one_of("preactivation", preactivation, (None, "branch", "both"), self)
        self.shortcut = one_of("shortcut", shortcut, ("pad", "none"), self)
        self.synchronized = bool(synchronized)
        default = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
        self.kernel_initializer = keras.initializers.get(kernel_initializer) or default
        self.regularizer = keras.regularizers.get(regularizer)
        self.conv1 = self._convolution("conv1", 0, self.strides)
        self.conv2 = self._convolution("conv2", 1, 1)
        # Before the first and the second convolution, or behind them.
        self.norm1 = batch_normalization(self.regularizer, self.synchronized, dtype=self.dtype_policy, name="norm1")
        self.norm2 = batch_normalization(self.regularizer, self.synchronized, dtype=self.dtype_policy, name="norm2")
        self.skip = None

    def _convolution(self, name, number, strides):
        return keras.layers.Conv2D(
            self.filters,
            3,
            strides=strides,
            padding="same",
            use_bias=False,
            kernel_initializer=reseeded(self.kernel_initializer, number),
            kernel_regularizer=self.regularizer,
            data_format="channels_last",
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, input_shape):
        inner_shape = self.compute_output_shape(input_shape)
        if self.shortcut == "pad" and (self.strides > 1 or input_shape[-1] != self.filters):
            self.skip = PadShortcut2D(
                self.filters, self.strides, "none", "channels_last", dtype=self.dtype_policy, name="skip"
            )
            self.skip.build(input_shape)
        self.norm1.build(input_shape if self.preactivation else inner_shape)
        self.conv1.build(input_shape)
        self.norm2.build(inner_shape)
        self.conv2.build(inner_shape)

    def call(self, inputs, training=None):
        if self.preactivation:
            active = ops.relu(self.norm1(inputs, training=training))
            if self.preactivation == "both":
                inputs = active
            branch = self.conv2(ops.relu(self.norm2(self.conv1(active), training=training)))
        else:
            branch = ops.relu(self.norm1(self.conv1(inputs), training=training))
            branch = self.norm2(self.conv2(branch), training=training)
        if self.shortcut == "pad":
            branch = branch + ops.cast(inputs if self.skip is None else self.skip(inputs), branch.dtype)
        return branch if self.preactivation else ops.relu(branch)

    def compute_output_shape(self, input_shape):
        sizes = [size if size is None else -(-size // self.strides) for size in input_shape[1:3]]
        return (input_shape[0], *sizes, self.filters)

    def get_config(self):
        config = {
            "filters": self.filters,
            "strides": self.strides,
            "preactivation": self.preactivation,
            "shortcut": self.shortcut,
            "synchronized": self.synchronized,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "regularizer": keras.regularizers.serialize(self.regularizer),
        }
        return {**super().get_config(), **config}


def batch_normalization(regularizer, synchronized=False, **kwargs):
    """Batch normalisation with the constants of the published Torch code, its parameters regularised too."""
    return keras.layers.BatchNormalization(
        momentum=0.9,
        epsilon=1e-5,
        gamma_regularizer=regularizer,
        beta_regularizer=regularizer,
        synchronized=synchronized,
        **kwargs,
    )
