"""All-convolutional residual networks near the identity, of any depth and width.

This is the common builder of `idmatters_tf.models.cifar` and `idmatters_tf.models.imagenet`.
"""

from collections.abc import Callable, Sequence

import keras

from idmatters_tf._arguments import positive_integer
from idmatters_tf._conventions import batch_normalization, decay_regularizer
from idmatters_tf._keras_types import Initializer
from idmatters_tf._seeds import mix_seed
from idmatters_tf.initializers import IdentityNormal, StandardNormal
from idmatters_tf.layers import ResidualConv2D
from idmatters_tf.models._parts import classify
from idmatters_tf.models.layout import Layout


def identity_network(
    input_shape: Sequence[int | None],
    classes: int,
    layout: Layout,
    weight_decay: float = 1e-4,
    seed: int = 0,
    name: str = "identity_resnet",
) -> keras.Model:
    """Build the network of a layout.

    Args:
        input_shape: `(rows, cols, channels)`; rows and cols may be None.
        classes: number of classes.
        layout: an `idmatters_tf.models.layout.Layout`.
        weight_decay: see `idmatters_tf.models.cifar.identity_resnet`.
        seed: non-negative integer that determines all kernels.
        name: name of the model.

    Returns:
        A `keras.Model` from images to logits, float32 also under a 16-bit dtype policy.
    """
    classes = positive_integer("classes", classes)
    regularizer = decay_regularizer(weight_decay)
    first_initializer, last_initializer = _branch_initializers(layout.initializer, sum(layout.blocks))

    inputs = keras.Input(input_shape, name="images")
    features = keras.layers.Conv2D(
        layout.stem,
        layout.stem_size,
        strides=layout.stem_strides,
        padding="same",
        use_bias=layout.bias,
        kernel_initializer=StandardNormal(mix_seed(seed, 0)),  # pyright: ignore[reportArgumentType]
        kernel_regularizer=regularizer,
        name="stem",
    )(inputs)
    if layout.norm is not None and not layout.norm_first:
        features = batch_normalization(layout.norm, momentum=layout.norm_momentum, name="stem_norm")(features)
    stages = zip(layout.blocks, layout.widths, layout.strides, strict=True)
    for stage, (count, width, stride) in enumerate(stages, start=1):
        for block in range(1, count + 1):
            features = ResidualConv2D(
                width,
                strides=stride if block == 1 else 1,
                activation=keras.layers.LeakyReLU(layout.negative_slope) if layout.negative_slope else "relu",
                use_bias=layout.bias,
                shortcut=layout.shortcut,
                norm=layout.norm,
                norm_first=layout.norm_first,
                norm_momentum=layout.norm_momentum,
                branch_scale=layout.branch_scale,
                kernel_initializer=first_initializer(mix_seed(seed, stage, block)),
                last_kernel_initializer=last_initializer(mix_seed(seed, stage, block)),
                projection_initializer=StandardNormal(mix_seed(seed, stage, block)),
                kernel_regularizer=regularizer,
                name=f"stage{stage}_block{block}",
            )(features)
    if layout.norm is not None and layout.norm_first:
        features = batch_normalization(layout.norm, momentum=layout.norm_momentum, name="last_norm")(features)
    kind = "zero" if layout.initializer == "fixup" and layout.head == "trained" else layout.head
    return keras.Model(inputs, classify(features, kind, classes, seed, regularizer), name=name)


def _branch_initializers(name: str, branches: int) -> tuple[Callable[[int], Initializer], Callable[[int], Initializer]]:
    """Return the initializers of a branch's first and second kernel, each as a function of a seed."""
    if name == "fixup":
        return lambda seed: keras.initializers.VarianceScaling(2 / branches, seed=seed), lambda _: "zeros"
    normal = IdentityNormal if name == "identity" else StandardNormal
    return normal, normal
