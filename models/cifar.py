"""The all-convolutional residual network for CIFAR: Hardt & Ma, *Identity Matters in Deep Learning*, Table 1."""

import keras

from idmatters_tf.initializers import IdentityNormal, StandardNormal, mixed_seed
from idmatters_tf.layers import RandomProjection, ResidualConv2D

INITIALIZERS = {"identity": IdentityNormal, "standard": StandardNormal}


def identity_resnet(
    input_shape=(32, 32, 3),
    classes=10,
    blocks=9,
    widths=(64, 128, 256),
    stem=16,
    bias=False,
    shortcut="pad",
    head="random",
    norm=None,
    initializer="identity",
    weight_decay=1e-4,
    seed=0,
    name="identity_resnet",
):
    """The network of Table 1: a 3x3 stem, stages of residual blocks, an average over space and a frozen random head.

    With the defaults it has 55 convolutions and 13,538,736 trainable parameters (the paper's "13.5M"). Its text also
    says 13.59 million: that is 13,588,800, reached with `bias=True, shortcut="projection"`.

    Args:
        input_shape: `(rows, cols, channels)`; rows and cols may be None. Pictures are expected standardised, see
            `idmatters_tf.layers.PerImageStandardization`.
        classes: the number of classes.
        blocks: residual blocks per stage.
        widths: channels of each stage. Each stage but the first starts with stride 2.
        stem: channels of the first convolution, which has no activation.
        bias: whether the 3x3 convolutions have biases.
        shortcut: "pad", "projection", or "none" for the standard parameterisation without skips.
        head: "random" for the paper's frozen N(0, 1/fan_in) matrix, "trained" for a trained one (with a bias).
        norm: None, or "batch" for batch normalisation after every 3x3 convolution; "synchronized" takes its statistics
            over all replicas of a `tf.distribute` strategy.
        initializer: of the residual convolutions: "identity" for N(0, (1/(k^2 c))^2), "standard" for
            N(0, (1/(k sqrt c))^2).
        weight_decay: the rate as the paper's TensorFlow code meant it, `rate * sum(w^2) / 2` over the kernels of the
            convolutions (and of a trained head): half of it goes to `keras.regularizers.L2`, which has no 1/2. Biases
            and normalisation parameters are not decayed.
        seed: a non-negative integer; every kernel's values follow from it.
        name: the model's name.

    Returns:
        A `keras.Model` from pictures to logits, float32 also under a 16-bit dtype policy.
    """
    _check(blocks=blocks, stem=stem, classes=classes, **{f"widths[{i}]": width for i, width in enumerate(widths)})
    if not widths:
        raise ValueError("Argument `widths` must name at least one stage. Received: widths=()")
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
        3,
        padding="same",
        use_bias=bias,
        kernel_initializer=StandardNormal(mixed_seed(seed, 0)),
        kernel_regularizer=regularizer,
        name="stem",
    )(inputs)
    if norm is not None:
        features = keras.layers.BatchNormalization(synchronized=norm == "synchronized", name="stem_norm")(features)
    for stage, width in enumerate(widths, start=1):
        for block in range(1, blocks + 1):
            features = ResidualConv2D(
                width,
                strides=2 if stage > 1 and block == 1 else 1,
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


def _check(**numbers):
    for argument, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"Argument `{argument}` must be a positive integer. Received: {argument}={value!r}")
