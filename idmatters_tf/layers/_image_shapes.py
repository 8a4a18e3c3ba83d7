"""Shapes of images for layers that change them, with channels last or first.

The functions read the attributes `name`, `filters`, `strides` and `data_format` of the layer.
"""

from typing import Any

import keras
from keras import ops

from idmatters_tf._arguments import check_choice
from idmatters_tf._keras_types import Shape, Tensor


def resolve_data_format(value: str | None, layer: keras.layers.Layer) -> str:
    """Return "channels_last" or "channels_first"; for None, Keras' setting."""
    return check_choice(
        "data_format", value or keras.config.image_data_format(), ("channels_last", "channels_first"), layer
    )


def channel_axis(data_format: str | None = None) -> int:
    """Return the axis of the channels in a batch of images; for None, with Keras' setting."""
    return 1 if (data_format or keras.config.image_data_format()) == "channels_first" else 3


def channels(input_shape: Shape, layer: Any) -> int:
    """Return the number of input channels.

    Raises:
        ValueError: the shape is not of rank 4, or the number of channels is unknown.
    """
    number = input_shape[channel_axis(layer.data_format)] if len(input_shape) == 4 else None
    if number is None:
        raise ValueError(
            f"Layer {layer.name} needs images as a rank-4 tensor with a known number of channels "
            f"({layer.data_format}). Received: input_shape={tuple(input_shape)}"
        )
    return number


def check_widening(input_shape: Shape, layer: Any, remedy: str = "") -> None:
    """Raise ValueError if a layer that pads with zero channels has fewer channels than its input."""
    number = channels(input_shape, layer)
    if number > layer.filters:
        raise ValueError(
            f"Argument `filters` of {layer.name} must be at least the {number} channels of its input: zero padding "
            f"cannot drop channels. Received: filters={layer.filters}{remedy}"
        )


def pad_channels(images: Tensor, layer: Any) -> Tensor:
    """Pad images to the channels of a layer with zeros on both sides. An odd channel is added at the end."""
    axis = channel_axis(layer.data_format)
    extra = layer.filters - images.shape[axis]
    if not extra:
        return images
    widths = [[0, 0]] * 4
    widths[axis] = [extra // 2, extra - extra // 2]
    return ops.pad(images, widths)


def strided_shape(input_shape: Shape, layer: Any) -> Shape:
    """Return the output shape of a layer with "same" padding: sizes divided by the stride, rounded up."""
    channels(input_shape, layer)
    axis = channel_axis(layer.data_format)
    shape = [size if size is None else -(-size // layer.strides) for size in input_shape]
    shape[0], shape[axis] = input_shape[0], layer.filters
    return tuple(shape)
