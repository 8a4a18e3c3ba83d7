"""The all-convolutional network for ImageNet: Hardt & Ma, *Identity Matters in Deep Learning*, section 4.2."""

from collections.abc import Sequence
from typing import Any

import keras

from idmatters_tf.models.identity import identity_network
from idmatters_tf.models.layout import IMAGENET, imagenet_layout

RESNET34_WIDTHS = (64, 128, 256, 512)


def identity_resnet34(
    input_shape: Sequence[int | None] = (224, 224, 3),
    classes: int = 1000,
    blocks: Sequence[int] = IMAGENET.blocks,
    widths: Sequence[int] = IMAGENET.widths,
    stem: int = 64,
    *,
    weight_decay: float = 1e-4,
    seed: int = 0,
    name: str = "identity_resnet34",
    **ablations: Any,
) -> keras.Model:
    """Build the "all-convolutional variant of the 34-layer network" of residual blocks with a single ReLU.

    The paper specifies this and "35.7M trainable parameters"; a plain ResNet-34 has 21.1 million. The layout is
    therefore our choice. The blocks and the 7x7 stem of 64 channels and stride 2 are those of He et al. (2015), Table
    1. The widths are chosen to give 35,694,336 trainable parameters. A stride of 2 in the first block replaces He et
    al.'s max pooling, because the paper's networks have no pooling; the stages have 56, 28, 14 and 7 rows.
    `widths=RESNET34_WIDTHS` are He et al.'s widths.

    The arguments and the result are those of `cifar.identity_resnet`, with a number of `blocks` for each stage.
    `norm="batch", head="trained"` is nearest to He et al.'s network.
    """
    layout = imagenet_layout(blocks, widths, stem, **ablations)
    return identity_network(input_shape, classes, layout, weight_decay=weight_decay, seed=seed, name=name)
