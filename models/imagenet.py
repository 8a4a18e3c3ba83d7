"""The all-convolutional network for ImageNet: Hardt & Ma, *Identity Matters in Deep Learning*, section 4.2."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from idmatters_tf.models.identity import identity_network
from idmatters_tf.models.layout import IMAGENET, Layout, imagenet_layout

BLOCKS = IMAGENET.blocks
WIDTHS = IMAGENET.widths
RESNET34_WIDTHS = (64, 128, 256, 512)


def identity_resnet34(
    input_shape: Sequence[int | None] = (224, 224, 3),
    classes: int = 1000,
    blocks: Sequence[int] = BLOCKS,
    widths: Sequence[int] = WIDTHS,
    stem: int = 64,
    *,
    layout: Layout | None = None,
    weight_decay: float = 1e-4,
    seed: int = 0,
    name: str = "identity_resnet34",
    **ablations: Any,
) -> keras.Model:
    """Build "an all-convolutional variant of the 34-layer network", residual blocks with a single ReLU.

    The paper says no more than that, and "35.7M trainable parameters", which no plain ResNet-34 has (21.1 million).
    The layout is therefore our choice: the blocks and the 7x7 stem of 64 channels and stride 2 are those of He et al.
    (2015), Table 1; the widths are chosen to give 35,694,336 trainable parameters. He et al.'s max pooling, which the
    paper's networks do without, is replaced by a stride of 2 in the first block, so that the stages work on 56, 28, 14
    and 7 rows. `widths=RESNET34_WIDTHS` are He et al.'s own.

    Args:
        input_shape: `(rows, cols, channels)`; rows and cols may be None. Images are expected standardised, see
            `idmatters_tf.layers.PerImageStandardization`.
        classes: the number of classes.
        blocks: residual blocks of each stage.
        widths: channels of each stage.
        stem: channels of the first convolution.
        layout: a `Layout` in place of `blocks`, `widths` and `stem`.
        weight_decay, seed, name: see `cifar.identity_resnet`.
        ablations: other fields of the `Layout` by name; `norm="batch", head="trained"` is nearest to He et al.'s.

    Returns:
        A `keras.Model` from images to logits, float32 also under a 16-bit dtype policy.
    """
    layout = imagenet_layout(blocks, widths, stem) if layout is None else layout
    return identity_network(
        input_shape, classes, dataclasses.replace(layout, **ablations), weight_decay=weight_decay, seed=seed, name=name
    )
