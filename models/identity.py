"""All-convolutional residual networks near the identity, of any depth and width: what `models.cifar` and
`models.imagenet` have in common.
"""

import keras

from idmatters_tf.initializers import IdentityNormal, StandardNormal, mixed_seed
from idmatters_tf.layers import RandomProjection, ResidualConv2D

INITIALIZERS = {"identity": IdentityNormal, "standard": StandardNormal}


def identity_network(
    input_shape,
    classes,
    blocks,
    widths,
    strides,
    stem,
    stem_size=3,
    stem_strides=1,
    bias=False,
    shortcut="pad",
    head="random",
    norm=None,
    initializer="identity",
    weight_decay=1e-4,
    seed=0,
    name="identity_resnet",
):
    """A stem, stages of residual blocks, an average over space and a head.

    Args:
        input_shape: `(rows, cols, channels)`; rows and cols may be None.
        classes: the number of classes.
        blocks: residual blocks of each stage.
        widths: channels of each stage.
        strides: of each stage's first block.
        stem, stem_size, stem_strides: channels, kernel side and stride of the first convolution, which has no
            activation.
        bias, shortcut, head, norm, initializer, weight_decay, seed, name: see `models.cifar.identity_resnet`.

    Returns:
        A `keras.Model` from pictures to logits, float32 also under a 16-bit dtype policy.
    """
    if not widths:
        raise ValueError("Argument `widths` must name at least one stage. Received: widths=()")
    if len(blocks) != len(widths):
        raise ValueError(
            f"Arguments `blocks` and `widths` must name as many stages. Received: blocks={tuple(blocks)}, "
            f"widths={tuple(widths)}"
        )
    positive(stem=stem, classes=classes, **_named("widths", widths), **_named("blocks", blocks))
    if initializer not in INITIALIZERS:
        raise ValueError(
            f"Argument `initializer` must be one of {', '.join(map(repr, INITIALIZERS))}. "
            f"Received: initializer={initializer!r}"
        )
    if head not in ("random", "trained"):
        raise ValueError(f"Argument `head` must be 'random' or 'trained'. Received: head={head!r}")
    if weight_decay < 0:
        raise ValueError(f"Argument `weight_decay` must be 0 or more. Received: weight_decay={weight_decay}")
    regularizer = keras.regularizers.L2(weight_decay / 2) if weight_decay else None

    inputs = keras.Input(input_shape, name="images")
    features = keras.layers.Conv2D(
        stem,
        stem_size,
        strides=stem_strides,
        padding="same",
        use_bias=bias,
        kernel_initializer=StandardNormal(mixed_seed(seed, 0)),
        kernel_regularizer=regularizer,
        name="stem",
    )(inputs)
    if norm is not None:
        features = keras.layers.BatchNormalization(synchronized=norm == "synchronized", name="stem_norm")(features)
    for stage, (count, width, stride) in enumerate(zip(blocks, widths, strides, strict=True), start=1):
        for block in range(1, count + 1):
            features = ResidualConv2D(
                width,
                strides=stride if block == 1 else 1,
                use_bias=bias,
                shortcut=shortcut,
                norm=norm,
                kernel_initializer=INITIALIZERS[initializer](mixed_seed(seed, stage, block)),
                projection_initializer=StandardNormal(mixed_seed(seed, stage, block)),
                kernel_regularizer=regularizer,
                name=f"stage{stage}_block{block}",
            )(features)
    # The last layers stay in 32 bits or more: class scores need more than bfloat16's 8 bits.
    wide = features.dtype
    features = keras.layers.GlobalAveragePooling2D(dtype=wide, name="pool")(features)
    if head == "random":
        projection = RandomProjection(classes, seed=seed, dtype=wide, name="head")
    else:
        projection = keras.layers.Dense(
            classes,
            kernel_initializer=keras.initializers.GlorotUniform(mixed_seed(seed, 1)),
            kernel_regularizer=regularizer,
            dtype=wide,
            name="head",
        )
    return keras.Model(inputs, projection(features), name=name)


def _named(argument, values):
    return {f"{argument}[{i}]": value for i, value in enumerate(values)}


def positive(**numbers):
    """Raises ValueError for arguments that are not positive integers."""
    for argument, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"Argument `{argument}` must be a positive integer. Received: {argument}={value!r}")
