"""The all-convolutional network for ImageNet: Hardt & Ma, *Identity Matters in Deep Learning*, section 4.2."""

from collections.abc import Sequence

import keras

from idmatters_tf.models.identity import identity_network
from idmatters_tf.models.layout import IMAGENET, Head, Initializer, Norm, Shortcut, imagenet_layout

BLOCKS = IMAGENET.blocks
WIDTHS = IMAGENET.widths
RESNET34_WIDTHS = (64, 128, 256, 512)


def identity_resnet34(
    input_shape: Sequence[int | None] = (224, 224, 3),
    classes: int = 1000,
    blocks: Sequence[int] = BLOCKS,
    widths: Sequence[int] = WIDTHS,
    stem: int = 64,
    bias: bool = False,
    shortcut: Shortcut = "pad",
    head: Head = "random",
    norm: Norm | None = None,
    norm_first: bool = False,
    norm_momentum: float = 0.99,
    initializer: Initializer = "identity",
    branch_scale: float | None = None,
    negative_slope: float = 0.0,
    weight_decay: float = 1e-4,
    seed: int = 0,
    name: str = "identity_resnet34",
) -> keras.Model:
    """Build "an all-convolutional variant of the 34-layer network": residual convolutions, one ReLU in each block.

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
        bias, shortcut, head, norm, norm_first, norm_momentum: see `cifar.identity_resnet`; `norm="batch",
            head="trained", bias=False` is nearest to He et al.'s.
        initializer, branch_scale, negative_slope, weight_decay, seed, name: the same.

    Returns:
        A `keras.Model` from images to logits, float32 also under a 16-bit dtype policy.
    """
    layout = imagenet_layout(
        tuple(blocks),
        tuple(widths),
        stem,
        bias=bias,
        shortcut=shortcut,
        head=head,
        norm=norm,
        norm_first=norm_first,
        norm_momentum=norm_momentum,
        initializer=initializer,
        branch_scale=branch_scale,
        negative_slope=negative_slope,
    )
    return identity_network(layout, input_shape, classes, weight_decay, seed, name)
