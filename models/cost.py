"""What a network costs, counted from its layout alone: no Keras, no weights."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Cost:
    """Counts of one network, for one picture.

    Attributes:
        parameters: that are trained.
        multiply_adds: of all convolutions and the head, forwards. Backwards costs twice as much.
        kept_values: that the backward pass needs from the forward pass: the inputs of all convolutions.
    """

    parameters: int
    multiply_adds: int
    kept_values: int


def identity_network_cost(size, blocks, widths, strides, stem, stem_size=3, stem_strides=1, classes=1000, channels=3):
    """Counts what `models.identity.identity_network` of the same arguments costs, with its defaults otherwise.

    Args:
        size: rows and columns of the square picture.
        channels: of the picture.
        blocks, widths, strides, stem, stem_size, stem_strides, classes: see `models.identity.identity_network`.

    Returns:
        A `Cost`.
    """
    kept = size * size * channels
    size = -(-size // stem_strides)
    parameters = stem_size * stem_size * channels * stem
    operations = parameters * size * size
    inputs = stem
    for count, width, stride in zip(blocks, widths, strides, strict=True):
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


def identity_resnet34_cost(size=224, blocks=(3, 4, 6, 3), widths=(80, 168, 328, 672), stem=64, classes=1000):
    """Counts what `models.imagenet.identity_resnet34` costs."""
    return identity_network_cost(size, blocks, widths, (2,) * len(widths), stem, 7, 2, classes)
