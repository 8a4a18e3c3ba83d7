"""The all-convolutional network for ImageNet: Hardt & Ma, *Identity Matters in Deep Learning*, section 4.2."""

from models.identity import identity_network

BLOCKS = (3, 4, 6, 3)
WIDTHS = (80, 168, 328, 672)
RESNET34_WIDTHS = (64, 128, 256, 512)


def identity_resnet34(
    input_shape=(224, 224, 3),
    classes=1000,
    blocks=BLOCKS,
    widths=WIDTHS,
    stem=64,
    bias=False,
    shortcut="pad",
    head="random",
    norm=None,
    initializer="identity",
    branch_scale=None,
    weight_decay=1e-4,
    seed=0,
    name="identity_resnet34",
):
    """ "An all-convolutional variant of the 34-layer network": residual convolutions and one ReLU in each block alone.

    The paper says no more than that, and "35.7M trainable parameters", which fits no plain ResNet-34 (21.1 million).
    The layout is therefore a choice: the blocks and the 7x7 stem of 64 channels and stride 2 are those of He et al.
    (2015), Table 1; the widths are made to give 35,694,336 trainable parameters. Where He et al. have a max pooling,
    which the paper's networks do without, the first block has stride 2, so that the stages work on 56, 28, 14 and 7
    rows. `widths=RESNET34_WIDTHS` are He et al.'s own.

    Args:
        input_shape: `(rows, cols, channels)`; rows and cols may be None. Pictures are expected standardised, see
            `idmatters_tf.layers.PerImageStandardization`.
        classes: the number of classes.
        blocks: residual blocks of each stage.
        widths: channels of each stage.
        stem: channels of the first convolution.
        bias, shortcut, head, norm, initializer, branch_scale, weight_decay, seed, name: see
            `models.cifar.identity_resnet`; `norm="batch", head="trained", bias=False` is nearest to He et al.'s.

    Returns:
        A `keras.Model` from pictures to logits, float32 also under a 16-bit dtype policy.
    """
    return identity_network(
        input_shape,
        classes,
        blocks=tuple(blocks),
        widths=tuple(widths),
        strides=(2,) * len(tuple(widths)),
        stem=stem,
        stem_size=7,
        stem_strides=2,
        bias=bias,
        shortcut=shortcut,
        head=head,
        norm=norm,
        initializer=initializer,
        branch_scale=branch_scale,
        weight_decay=weight_decay,
        seed=seed,
        name=name,
    )
