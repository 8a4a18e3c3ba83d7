"""Numbers of parameters and operations of a network, computed from its layout alone, without Keras."""

import dataclasses

from idmatters_tf.models.layout import Layout


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of a network for one image.

    Attributes:
        parameters: number of trainable parameters.
        multiply_adds: multiply-adds of all convolutions and the head in the forward pass; the backward pass takes twice
            as many.
        kept_values: number of values that the backward pass needs from the forward pass: the inputs of all
            convolutions.
    """

    parameters: int
    multiply_adds: int
    kept_values: int


def identity_network_cost(layout: Layout, size: int, classes: int = 1000, channels: int = 3) -> Cost:
    """Return the cost of `idmatters_tf.models.identity.identity_network` with a layout.

    Args:
        layout: a `layout.Layout`. The small costs of biases, projections, normalization and a trained head are not
            counted.
        size: rows and columns of the square image.
        classes: number of classes.
        channels: number of channels of the image.

    Returns:
        A `Cost`.
    """
    kept = size * size * channels
    size = -(-size // layout.stem_strides)
    parameters = layout.stem_size**2 * channels * layout.stem
    operations = parameters * size * size
    inputs = layout.stem
    for count, width, stride in zip(layout.blocks, layout.widths, layout.strides, strict=True):
        for block in range(count):
            # The inputs of the block's two convolutions.
            kept += size * size * inputs
            size = -(-size // stride) if block == 0 else size
            kept += size * size * width
            weights = 9 * inputs * width + 9 * width * width
            parameters += weights
            operations += weights * size * size
            inputs = width
    return Cost(parameters, operations + inputs * classes, kept + size * size * inputs)
