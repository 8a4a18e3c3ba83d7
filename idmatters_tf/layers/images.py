"""Base classes of layers on images, with channels last or first, and of residual blocks of two convolutions."""

from collections.abc import Callable
from typing import Any, Unpack

import keras
from keras import ops

from idmatters_tf._arguments import check_choice, positive_integer
from idmatters_tf._conventions import channel_axis, wide_dtype
from idmatters_tf._keras_types import Activation, Initializer, LayerOptions, Regularizer, Shape, Tensor
from idmatters_tf._seeds import reseed
from idmatters_tf.layers.wide import serialize_arguments


class ImageLayer(keras.layers.Layer):
    """Layer from images to images of `filters` channels, whose sizes are divided by the stride and rounded up.

    With `autocast=False` the outputs are float32 under a 16-bit dtype policy.
    """

    def __init__(
        self, filters: int, strides: int, data_format: str | None, autocast: bool = True, **kwargs: Unpack[LayerOptions]
    ):
        super().__init__(autocast=autocast, **kwargs)
        self.filters = positive_integer("filters", filters, self)
        self.strides = positive_integer("strides", strides, self)
        formats = ("channels_last", "channels_first")
        self.data_format = check_choice("data_format", data_format or keras.config.image_data_format(), formats, self)

    def input_channels(self, input_shape: Shape) -> int:
        """Return the number of input channels. Raise ValueError if it is unknown or the shape is not of rank 4."""
        number = input_shape[channel_axis(self.data_format)] if len(input_shape) == 4 else None
        if number is None:
            raise ValueError(
                f"Layer {self.name} needs images as a rank-4 tensor with a known number of channels "
                f"({self.data_format}). Received: input_shape={tuple(input_shape)}"
            )
        return number

    def check_widening(self, input_shape: Shape, remedy: str = "") -> None:
        """Raise ValueError if a layer that pads with zero channels has fewer channels than its input."""
        number = self.input_channels(input_shape)
        if number > self.filters:
            raise ValueError(
                f"Argument `filters` of {self.name} must be at least the {number} channels of its input: zero padding "
                f"cannot drop channels. Received: filters={self.filters}{remedy}"
            )

    def pool(self, images: Tensor, size: int) -> Tensor:
        """Return the averages over windows of a size, one for each stride."""
        if self.strides == 1:
            return images
        return ops.average_pool(images, size, self.strides, padding="same", data_format=self.data_format)

    def pad_channels(self, images: Tensor) -> Tensor:
        """Pad images to the channels of the layer with zeros on both sides. An odd channel is added at the end."""
        axis = channel_axis(self.data_format)
        extra = self.filters - images.shape[axis]
        widths = [[0, 0]] * 4
        widths[axis] = [extra // 2, extra - extra // 2]
        return ops.pad(images, widths) if extra else images

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        self.input_channels(input_shape)
        shape = [size if size is None else -(-size // self.strides) for size in input_shape]
        shape[0] = input_shape[0]
        shape[channel_axis(self.data_format)] = self.filters
        return tuple(shape)

    def compute_output_spec(self, inputs: Tensor, *_: object, **__: object) -> keras.KerasTensor:
        dtype = self.compute_dtype if self.autocast else wide_dtype(self)
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=dtype)

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), **serialize_arguments(self)}


class ConvolutionBlock(ImageLayer):
    """Residual block with a branch of two convolutions.

    Subclasses set `activation`, `kernel_initializer`, `kernel_regularizer`, `conv1`, `conv2` and, for normalization,
    `norm1` and `norm2`. With `normalizes_inputs` these two precede the convolutions, otherwise they follow them.
    """

    activation: Activation
    kernel_initializer: Initializer
    kernel_regularizer: Regularizer
    shortcut: str
    conv1: keras.layers.Conv2D
    conv2: keras.layers.Conv2D
    norm1: Any = None
    norm2: Any = None
    normalizes_inputs = False

    def convolution(
        self,
        name: str,
        number: int,
        size: int,
        strides: int = 1,
        initializer: Initializer = None,
        kind: type[keras.layers.Conv2D] = keras.layers.Conv2D,
        **options: Any,
    ) -> keras.layers.Conv2D:
        """Return a convolution of the block; `number` is mixed with the seed of its initializer."""
        return kind(
            self.filters,
            size,
            strides=strides,
            padding="same",
            kernel_initializer=reseed(initializer or self.kernel_initializer, number),
            kernel_regularizer=self.kernel_regularizer,
            data_format=self.data_format,
            dtype=self.dtype_policy,
            name=name,
            **options,
        )

    def build(self, input_shape: Shape) -> None:
        inner_shape = self.compute_output_shape(input_shape)
        self.conv1.build(input_shape)
        self.conv2.build(inner_shape)
        if self.norm1 is not None:
            self.norm1.build(input_shape if self.normalizes_inputs else inner_shape)
            self.norm2.build(inner_shape)

    def branch_steps(self) -> list[Callable[..., Tensor]]:
        """Return the layers and functions of the branch, in order."""
        if self.norm1 is None:
            return [self.conv1, self.activation, self.conv2]
        if self.normalizes_inputs:
            return [self.norm1, self.conv1, self.norm2, self.activation, self.conv2]
        return [self.conv1, self.norm1, self.activation, self.conv2, self.norm2]

    def branch(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Return the branch of the block."""
        for step in self.branch_steps():
            inputs = step(inputs, training=training) if step in (self.norm1, self.norm2) else step(inputs)
        return inputs
