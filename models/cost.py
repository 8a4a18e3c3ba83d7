"""What a network costs, counted from its layout alone: no Keras, no weights."""

import dataclasses

from idmatters_tf.models.layout import Layout


@dataclasses.dataclass(frozen=True)
class Cost:
    """Counts of one network, for one image.

    Attributes:
        parameters: number of trainable parameters.
        multiply_adds: of all convolutions and the head in the forward pass; the backward pass takes twice as many.
        kept_values: that the backward pass needs from the forward pass: the inputs of all convolutions.
    """

    parameters: int
    multiply_adds: int
    kept_values: int


def identity_network_cost(layout: Layout, size: int, classes: int = 1000, channels: int = 3) -> Cost:
    """Counts what `idmatters_tf.models.identity.identity_network` of a layout costs.

    Args:
        layout: a `layout.Layout`, without biases, projections, normalisation and a trained head: their costs,
            small beside the rest, are not counted.
        size: rows and columns of the square image.
        classes: the number of classes.
        channels: of the image.

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
            # The block's input, and what is between its two convolutions.
            kept += size * size * inputs
            size = -(-size // stride) if block == 0 else size
            kept += size * size * width
            weights = 9 * inputs * width + 9 * width * width
            parameters += weights
            operations += weights * size * size
            inputs = width
    return Cost(parameters, operations + inputs * classes, kept + size * size * inputs)
