"""Residual networks with batch normalization: He et al. (2015) and, pre-activated, He et al. (2016).

The row "ResNet" of Hardt & Ma's Table 2 combines three networks: depth 110 on CIFAR-10 (6.43 % error), and two with
bottlenecks that are not in this package, ResNet-164 on CIFAR-100 (25.16 %, He et al., 2016) and ResNet-152 on ImageNet
(19.38 %). Li et al. measured the pre-activated form (their Figure 2).
"""

from typing import Any, get_args

import keras

from idmatters_tf._arguments import check_choice, positive_integer
from idmatters_tf._conventions import decay_regularizer
from idmatters_tf._keras_types import Initializer, Shape
from idmatters_tf._seeds import mix_seed
from idmatters_tf.layers import BasicBlock2D
from idmatters_tf.models._parts import logits, normalize_and_rectify
from idmatters_tf.models.layout import RESNET_IMAGENET, Shortcut, resnet_blocks

WIDTHS = (16, 32, 64)
IMAGENET_WIDTHS = (64, 128, 256, 512)


def resnet(
    input_shape: Shape = (32, 32, 3),
    classes: int = 10,
    depth: int = 110,
    shortcut: str = "pad",
    norm: str = "batch",
    weight_decay: float = 1e-4,
    seed: int = 0,
    name: str = "resnet",
    *,
    preactivated: bool = False,
) -> keras.Model:
    """Build the network of He et al. (2015), section 4.2: three stages of basic blocks with 16, 32 and 64 channels.

    Trainable parameters with ten classes: 269,722 at depth 20, 464,154 at 32, 658,586 at 44, 853,018 at 56, 1,727,962
    at 110 (the paper's "1.7M") and 19,421,274 at 1202. Depths 18 and 34 are the paper's networks for ImageNet (Table
    1): a 7x7 stem of stride 2, max pooling, and four stages with 64 to 512 channels.

    Args:
        input_shape: `(rows, cols, channels)`; rows and cols may be None. Images must have mean 0.
        classes: number of classes.
        depth: 6 n + 2 for n blocks per stage, such as 20, 32, 44, 56, 110 and 1202; or 18 or 34.
        shortcut: "pad" for the paper's option A (every second pixel, zero channels), "projection" for its option B (1x1
            convolutions where the shape changes), or "none" for its plain networks.
        norm: "batch" for batch normalization, or "synchronized" for the same with statistics over all replicas of a
            `tf.distribute` strategy.
        weight_decay: rate in `rate * sum(w^2) / 2`, summed over all parameters, including those of the normalization,
            as in the published Torch code (fb.resnet.torch).
        seed: non-negative integer that determines all kernels.
        name: name of the model.
        preactivated: True for the network of `preresnet`.

    Returns:
        A `keras.Model` from images to logits, float32 also under a 16-bit dtype policy.
    """
    blocks = resnet_blocks(depth)
    classes = positive_integer("classes", classes)
    check_choice("shortcut", shortcut, get_args(Shortcut))
    check_choice("norm", norm, ("batch", "synchronized"))
    regularizer = decay_regularizer(weight_decay)

    def initializer(*salt: int) -> Initializer:
        return keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal", mix_seed(seed, *salt))

    is_large = depth in RESNET_IMAGENET
    widths = IMAGENET_WIDTHS if is_large else WIDTHS
    inputs = keras.Input(input_shape, name="images")
    features = keras.layers.Conv2D(
        widths[0],
        7 if is_large else 3,
        strides=2 if is_large else 1,
        padding="same",
        use_bias=False,
        kernel_initializer=initializer(0),
        kernel_regularizer=regularizer,
        name="stem",
    )(inputs)
    if not preactivated:
        features = normalize_and_rectify(features, norm, regularizer, "stem")
    if is_large:
        features = keras.layers.MaxPooling2D(3, 2, padding="same", name="stem_pool")(features)
    for stage, (count, width) in enumerate(zip(blocks, widths, strict=True), start=1):
        for block in range(1, count + 1):
            first = stage == block == 1
            features = BasicBlock2D(
                width,
                strides=2 if stage > 1 and block == 1 else 1,
                preactivation=("both" if first else "branch") if preactivated else None,
                shortcut=shortcut,
                norm=norm,
                kernel_initializer=initializer(stage, block),
                kernel_regularizer=regularizer,
                norm_regularizer=regularizer,
                name=f"stage{stage}_block{block}",
            )(features)
    if preactivated:
        features = normalize_and_rectify(features, norm, regularizer, "last")
    return keras.Model(inputs, logits(features, classes, regularizer, seed), name=name)


def preresnet(
    input_shape: Shape = (32, 32, 3), classes: int = 10, depth: int = 110, *, name: str = "preresnet", **options: Any
) -> keras.Model:
    """Build the pre-activated form of `resnet`: He et al. (2016), *Identity Mappings in Deep Residual Networks*.

    The skips are identities except where the shape changes. Both paths of the first block receive the normalized and
    rectified stem. One more normalization and ReLU follow the last block. The network has as many parameters as
    `resnet`, whose arguments it has.
    """
    return resnet(input_shape, classes, depth, name=name, preactivated=True, **options)
