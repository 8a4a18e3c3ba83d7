"""A residual network for fast training without normalisation layers, of the family of Hardt & Ma's Table 1."""

from collections.abc import Sequence

import keras

from idmatters_tf._arguments import positive_integer
from idmatters_tf.initializers import mixed_seed
from idmatters_tf.layers import PatchWhitening2D, ScaledResidualConv2D
from idmatters_tf.layers._arguments import decay_regularizer


def normalizer_free_resnet(
    input_shape: Sequence[int | None] = (32, 32, 3),
    classes: int = 10,
    blocks: int | Sequence[int] = 3,
    widths: Sequence[int] = (96, 192, 384),
    stem: int = 48,
    stem_size: int = 3,
    stem_strides: int = 1,
    whiten_stem: bool = False,
    branch_gain: float = 0.2,
    last_kernel_size: int = 1,
    standardize: bool = False,
    weight_decay: float = 0.0,
    seed: int = 0,
    name: str = "normalizer_free_resnet",
) -> keras.Model:
    """Blocks `x + C2(relu(C1 x))` with trained gains in place of normalisation, down-sampled early.

    A stem and an activation, then stages whose first block has stride 2, so that most of the work is done on 16x16
    pixels and fewer; an activation, the average over space, and a trained last layer that starts at zero, so that the
    loss starts at ln(classes). All convolutions have biases. It differs from `cifar.identity_resnet` in the
    gains, the biases, the two activations outside of blocks, the stride of the first stage and the head.

    It is meant for `idmatters_tf.optimizers.Muon`, which keeps the norm of every kernel; with other optimizers
    `standardize=True` bounds the kernels (Brock et al., 2021).

    Args:
        input_shape: `(rows, cols, channels)`; rows and cols may be None. Images are expected standardised.
        classes: the number of classes.
        blocks: residual blocks of each stage, or one number for all stages.
        widths: channels of each stage, not decreasing.
        stem, stem_size, stem_strides: channels, kernel size and stride of the first convolution.
        whiten_stem: whether the first convolution is a `PatchWhitening2D`, which is to be fitted to training images:
            `model.get_layer("stem").adapt(images)`.
        branch_gain: where the gains of each block's second kernel start, see `ScaledResidualConv2D`.
        last_kernel_size: of each block's second kernel. With 1 a block costs little more than half: the same work buys
            almost twice the activations in a row.
        standardize: whether the kernels of the blocks are standardised.
        weight_decay: the rate of `rate * sum(w^2) / 2` over the kernel of the last layer alone: the others are meant to
            keep their norm.
        seed: a non-negative integer; every kernel's values follow from it.
        name: the model's name.

    Returns:
        A `keras.Model` from images to logits, float32 also under a 16-bit dtype policy.
    """
    for argument, value in {
        "classes": classes,
        "stem": stem,
        "stem_size": stem_size,
        "stem_strides": stem_strides,
        "last_kernel_size": last_kernel_size,
    }.items():
        positive_integer(argument, value)
    counts = [blocks] * len(widths) if isinstance(blocks, int) else list(blocks)
    if len(counts) != len(widths):
        raise ValueError(
            f"Arguments `blocks` and `widths` must name as many stages. Received: blocks={tuple(counts)}, "
            f"widths={tuple(widths)}"
        )
    for count in counts:
        positive_integer("blocks", count)
    if not widths or list(widths) != sorted(widths) or widths[0] < stem:
        raise ValueError(
            f"Argument `widths` must name at least one stage and must not decrease, from the stem on. Received: "
            f"widths={tuple(widths)}, stem={stem}"
        )
    inputs = keras.Input(input_shape, name="images")
    convolution = PatchWhitening2D if whiten_stem else keras.layers.Conv2D
    features = convolution(
        stem,
        stem_size,
        strides=stem_strides,
        padding="same",
        activation="relu",
        kernel_initializer=keras.initializers.HeNormal(mixed_seed(seed, 0)),  # pyright: ignore[reportArgumentType]
        name="stem",
    )(inputs)
    for stage, (count, width) in enumerate(zip(counts, widths, strict=True), start=1):
        for block in range(1, count + 1):
            features = ScaledResidualConv2D(
                width,
                strides=2 if block == 1 else 1,
                branch_gain=branch_gain,
                last_kernel_size=last_kernel_size,
                standardize=standardize,
                kernel_initializer=keras.initializers.HeNormal(mixed_seed(seed, stage, block)),
                name=f"stage{stage}_block{block}",
            )(features)
    features = keras.layers.Activation("relu", name="activation")(features)
    # In float32 also under 16-bit policies: class scores need more than bfloat16's 8 bits.
    features = keras.layers.GlobalAveragePooling2D(dtype="float32", name="pool")(features)
    head = keras.layers.Dense(
        classes,
        kernel_initializer="zeros",
        kernel_regularizer=decay_regularizer(weight_decay),
        dtype="float32",
        name="head",
    )
    return keras.Model(inputs, head(features), name=name)
