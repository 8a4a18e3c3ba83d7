"""Densely connected networks: Huang et al., *Densely Connected Convolutional Networks* (2016).

The row "DenseNet" of Hardt & Ma's Table 2 is L = 100, k = 24: 3.74 % error on CIFAR-10 and 19.25 % on CIFAR-100.
"""

import itertools

import keras

from idmatters_tf._arguments import check_choice, positive_integer
from idmatters_tf._conventions import channel_axis, decay_regularizer
from idmatters_tf._keras_types import Initializer, Shape, Tensor
from idmatters_tf._seeds import mix_seed
from idmatters_tf.models._parts import logits, normalize_and_rectify
from idmatters_tf.models.layout import densenet_layers


def densenet(
    input_shape: Shape = (32, 32, 3),
    classes: int = 10,
    depth: int = 100,
    growth: int = 24,
    bottleneck: bool = False,
    norm: str = "batch",
    weight_decay: float = 1e-4,
    seed: int = 0,
    name: str = "densenet",
) -> keras.Model:
    """Build a densely connected network, in which the input of a layer is the outputs of all layers before it.

    A layer is `concat(x, C(relu(BN x)))` with a 3x3 convolution of `growth` channels. With `bottleneck`, a 1x1
    convolution of 4 * growth channels, normalized and rectified, precedes it. Between the three dense blocks there are
    normalization, ReLU, a 1x1 convolution and 2x2 average pooling.

    Trainable parameters with ten classes: 27,249,082 at L = 100, k = 24 (the paper's "27.2M"); 769,162 at L = 100,
    k = 12 with bottlenecks ("0.8M"), 15,324,406 at L = 250, k = 24 ("15.3M"). Depths 121, 169 and 201 with bottlenecks
    are the paper's networks for ImageNet (Table 1), with growth 32: a 7x7 stem of stride 2, max pooling, and four
    blocks.

    Args:
        input_shape: `(rows, cols, channels)`; rows and cols may be None. Each channel of the images must have
            mean 0 and standard deviation 1.
        classes: number of classes.
        depth: L, of the form 3 n + 4 for n layers in each block; with bottlenecks 6 n + 4, or 121, 169 or 201.
        growth: k, the number of channels that each layer adds.
        bottleneck: True for the BC form, in which transitions keep half of the channels.
        norm: "batch" for batch normalization, or "synchronized" for the same with statistics over all replicas of a
            `tf.distribute` strategy.
        weight_decay: rate in `rate * sum(w^2) / 2`, summed over all parameters, including those of the normalization,
            as in the published Torch code.
        seed: non-negative integer that determines all kernels.
        name: name of the model.

    Returns:
        A `keras.Model` from images to logits, float32 also under a 16-bit dtype policy.
    """
    layers = densenet_layers(depth, bottleneck)
    growth = positive_integer("growth", growth)
    classes = positive_integer("classes", classes)
    check_choice("norm", norm, ("batch", "synchronized"))
    regularizer = decay_regularizer(weight_decay)
    seeds = (mix_seed(seed, number) for number in itertools.count(2))

    def convolution(features: Tensor, filters: int, side: int, name: str, strides: int = 1) -> Tensor:
        initializer: Initializer = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal", next(seeds))
        return keras.layers.Conv2D(
            filters,
            side,
            strides=strides,
            padding="same",
            use_bias=False,
            kernel_initializer=initializer,
            kernel_regularizer=regularizer,
            name=name,
        )(features)

    def normalized(features: Tensor, name: str) -> Tensor:
        return normalize_and_rectify(features, norm, regularizer, name)

    inputs = keras.Input(input_shape, name="images")
    is_large = len(layers) > 3
    channels = 2 * growth if bottleneck else 16
    features = convolution(inputs, channels, 7 if is_large else 3, "stem", strides=2 if is_large else 1)
    if is_large:
        features = keras.layers.MaxPooling2D(3, 2, padding="same", name="stem_pool")(normalized(features, "stem"))
    for block, count in enumerate(layers, start=1):
        for layer in range(1, count + 1):
            at = f"block{block}_layer{layer}"
            added = normalized(features, at)
            if bottleneck:
                added = normalized(convolution(added, 4 * growth, 1, f"{at}_narrow"), f"{at}_narrow")
            added = convolution(added, growth, 3, f"{at}_conv")
            features = keras.layers.Concatenate(axis=channel_axis(), name=f"{at}_concat")([features, added])
        if block < len(layers):
            at = f"transition{block}"
            kept = features.shape[channel_axis()] // (2 if bottleneck else 1)
            features = convolution(normalized(features, at), kept, 1, f"{at}_conv")
            features = keras.layers.AveragePooling2D(2, name=f"{at}_pool")(features)
    outputs = logits(normalized(features, "last"), classes, regularizer, seed)
    return keras.Model(inputs, outputs, name=name)
