"""Residual networks for fast training without normalization layers, in the style of Hardt & Ma's Table 1."""

from collections.abc import Iterable, Sequence

import keras

from idmatters_tf._arguments import positive_integer
from idmatters_tf._conventions import decay_regularizer
from idmatters_tf._seeds import mix_seed
from idmatters_tf.layers import ScaledResidualConv2D
from idmatters_tf.models._parts import classify
from idmatters_tf.models.layout import Layout


def normalizer_free_resnet(
    input_shape: Sequence[int | None] = (32, 32, 3),
    classes: int = 10,
    blocks: int | Sequence[int] = 3,
    widths: Sequence[int] = (96, 192, 384),
    stem: int = 48,
    stem_size: int = 3,
    branch_gain: float = 0.2,
    weight_decay: float = 0.0,
    seed: int = 0,
    name: str = "normalizer_free_resnet",
) -> keras.Model:
    """Build a network of blocks `x + C2(relu(C1 x))` with trained gains in place of normalization.

    The kernels of C2 have one row and column. Such a block costs little more than half of one with two 3x3 kernels, so
    that the same number of operations allows almost twice as many blocks.

    The network has a stem and an activation, stages whose first block has stride 2, so that most operations are on
    16x16 pixels and fewer, an activation, the average over space, and a trained last layer of zeros, so that the
    initial loss is ln(classes). All convolutions have biases. It differs from `cifar.identity_resnet` in the gains, the
    biases, the two activations outside of blocks, the stride of the first stage and the head.

    Use it with `idmatters_tf.optimizers.Muon`, which keeps the norm of every kernel.

    Args:
        input_shape: `(rows, cols, channels)`; rows and cols may be None. Images must be standardized.
        classes: number of classes.
        blocks: number of residual blocks of each stage, or one number for all stages.
        widths: number of channels of each stage, not decreasing.
        stem: number of channels of the first convolution.
        stem_size: kernel size of the first convolution.
        branch_gain: initial value of the gains of each block's second kernel, see `ScaledResidualConv2D`.
        weight_decay: rate in `rate * sum(w^2) / 2`, summed over the trained kernels.
        seed: non-negative integer that determines all kernels.
        name: name of the model.

    Returns:
        A `keras.Model` from images to logits, float32 also under a 16-bit dtype policy.
    """
    counts = tuple(blocks) if isinstance(blocks, Iterable) else (blocks,) * len(widths)
    # Check the arguments and convert NumPy's integers.
    layout = Layout(counts, tuple(widths), (2,) * len(widths), stem, stem_size)
    classes = positive_integer("classes", classes)
    if list(layout.widths) != sorted(layout.widths) or layout.widths[0] < layout.stem:
        raise ValueError(
            f"Argument `widths` must not decrease from the stem on. Received: widths={layout.widths}, "
            f"stem={layout.stem}"
        )
    regularizer = decay_regularizer(weight_decay)
    inputs = keras.Input(input_shape, name="images")
    features = keras.layers.Conv2D(
        layout.stem,
        layout.stem_size,
        padding="same",
        activation="relu",
        kernel_initializer=keras.initializers.HeNormal(mix_seed(seed, 0)),  # pyright: ignore[reportArgumentType]
        kernel_regularizer=regularizer,
        name="stem",
    )(inputs)
    for stage, (count, width) in enumerate(zip(layout.blocks, layout.widths, strict=True), start=1):
        for block in range(1, count + 1):
            features = ScaledResidualConv2D(
                width,
                strides=2 if block == 1 else 1,
                branch_gain=branch_gain,
                last_kernel_size=1,
                kernel_initializer=keras.initializers.HeNormal(mix_seed(seed, stage, block)),
                kernel_regularizer=regularizer,
                name=f"stage{stage}_block{block}",
            )(features)
    features = keras.layers.Activation("relu", name="activation")(features)
    return keras.Model(inputs, classify(features, "zero", classes, seed, regularizer), name=name)
