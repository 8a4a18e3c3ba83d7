"""All-convolutional residual networks near the identity, of any depth and width: what `models.cifar` and
`models.imagenet` have in common.
"""

import keras

from idmatters_tf.arguments import one_of, positive_integer
from idmatters_tf.initializers import IdentityNormal, StandardNormal, mixed_seed
from idmatters_tf.layers import RandomProjection, ResidualConv2D
from idmatters_tf.layers.arguments import decay_regularizer

INITIALIZERS = ("identity", "standard", "fixup")


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
    branch_scale=None,
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
        bias, shortcut, head, norm, initializer, branch_scale, weight_decay, seed, name: see
            `models.cifar.identity_resnet`.

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
    for argument, value in {"stem": stem, "classes": classes}.items():
        positive_integer(argument, value)
    for argument, values in {"blocks": blocks, "widths": widths}.items():
        for stage, value in enumerate(values):
            positive_integer(f"{argument}[{stage}]", value)
    one_of("initializer", initializer, INITIALIZERS)
    one_of("head", head, ("random", "trained"))
    regularizer = decay_regularizer(weight_decay)
    first_initializer, last_initializer = _branch_initializers(initializer, sum(blocks))

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
                branch_scale=branch_scale,
                kernel_initializer=first_initializer(mixed_seed(seed, stage, block)),
                last_kernel_initializer=last_initializer(mixed_seed(seed, stage, block)),
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
        random = keras.initializers.GlorotUniform(mixed_seed(seed, 1))
        projection = keras.layers.Dense(
            classes,
            kernel_initializer="zeros" if initializer == "fixup" else random,
            kernel_regularizer=regularizer,
            dtype=wide,
            name="head",
        )
    return keras.Model(inputs, projection(features), name=name)


def _branch_initializers(name, branches):
    """The initialisers of a branch's first and second kernel, each a function of a seed."""
    if name == "fixup":
        return lambda seed: keras.initializers.VarianceScaling(2 / branches, seed=seed), lambda _: "zeros"
    normal = IdentityNormal if name == "identity" else StandardNormal
    return normal, normal
