"""The all-convolutional residual network for CIFAR: Hardt & Ma, *Identity Matters in Deep Learning*, Table 1."""

import keras

from idmatters_tf.initializers import IdentityNormal, StandardNormal, mixed_seed
from idmatters_tf.layers import RandomProjection, ResidualConv2D
from idmatters_tf.layers.arguments import decay_regularizer, one_of, positive_integer

INITIALIZERS = ("identity", "standard", "fixup")


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
    branch_scale=None,
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
        norm: None, or "batch" for batch normalisation after every 3x3 convolution.
        initializer: of the residual convolutions: "identity" for N(0, (1/(k^2 c))^2), "standard" for
            N(0, (1/(k sqrt c))^2), or "fixup" (Zhang et al., 2019): He's divided by sqrt(branches) for the first
            convolution of a branch, zeros for the second and for a trained head. The method's multipliers are
            `branch_scale=1.0`, its biases (one each there, one a channel here) `bias=True`.
        branch_scale: None, or where a trained factor on each branch starts: 0.0 with `initializer="standard"` is
            SkipInit (De & Smith, 2020) and ReZero (Bachlechner et al., 2020).
        weight_decay: the rate as the paper's TensorFlow code meant it, `rate * sum(w^2) / 2` over the kernels of the
            convolutions (and of a trained head): half of it goes to `keras.regularizers.L2`, which has no 1/2. Biases
            and normalisation parameters are not decayed.
        seed: a non-negative integer; every kernel's values follow from it.
        name: the model's name.

    Returns:
        A `keras.Model` from pictures to logits, float32 also under a 16-bit dtype policy.
    """
    for argument, value in {"blocks": blocks, "stem": stem, "classes": classes}.items():
        positive_integer(argument, value)
    if not widths:
        raise ValueError("Argument `widths` must name at least one stage. Received: widths=()")
    for stage, width in enumerate(widths):
        positive_integer(f"widths[{stage}]", width)
    one_of("initializer", initializer, INITIALIZERS)
    one_of("head", head, ("random", "trained"))
    regularizer = decay_regularizer(weight_decay)
    first_initializer, last_initializer = _branch_initializers(initializer, blocks * len(widths))

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
    if norm == "batch":
        features = keras.layers.BatchNormalization(name="stem_norm")(features)
    for stage, width in enumerate(widths, start=1):
        for block in range(1, blocks + 1):
            features = ResidualConv2D(
                width,
                strides=2 if stage > 1 and block == 1 else 1,
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
        projection = keras.layers.Dense(
            classes,
            kernel_initializer="zeros"
            if initializer == "fixup"
            else keras.initializers.GlorotUniform(mixed_seed(seed, 1)),
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
