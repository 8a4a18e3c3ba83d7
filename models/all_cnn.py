"""All-CNN-C: Springenberg et al., *Striving for Simplicity: The All Convolutional Net* (2014), Tables 1 and 2.

This is the row "All-CNN" of Hardt & Ma's Table 2, with 7.25 % error on CIFAR-10 and 32.39 % on CIFAR-100.
"""

import keras

from idmatters_tf._arguments import positive_integer
from idmatters_tf._conventions import decay_regularizer, wide_dtype
from idmatters_tf._keras_types import Initializer, Shape, Tensor
from idmatters_tf._seeds import mix_seed

# Channels, kernel size, stride and padding of all convolutions but the last. Dropout follows the strided ones.
CONVOLUTIONS = (
    (96, 3, 1, "same"),
    (96, 3, 1, "same"),
    (96, 3, 2, "same"),
    (192, 3, 1, "same"),
    (192, 3, 1, "same"),
    (192, 3, 2, "same"),
    (192, 3, 1, "valid"),
    (192, 1, 1, "same"),
)


def all_cnn_c(
    input_shape: Shape = (32, 32, 3),
    classes: int = 10,
    stem_strides: int = 1,
    dropout: tuple[float, float] = (0.2, 0.5),
    weight_decay: float = 1e-3,
    seed: int = 0,
    name: str = "all_cnn_c",
) -> keras.Model:
    """Build All-CNN-C: nine convolutions with ReLU, two of them strided, and an average over space.

    The network has 1,369,738 parameters with ten classes. The paper preprocesses the images by global contrast
    normalization and ZCA whitening, which this package does not contain. It does not name the initializer; this
    function uses He's (2015).

    Args:
        input_shape: `(rows, cols, channels)`; rows and cols may be None.
        classes: number of classes.
        stem_strides: stride of the first convolution; 4 for images of 224 pixels.
        dropout: dropout rates of the input and of the output of each strided convolution.
        weight_decay: rate in `rate * sum(w^2) / 2`, summed over kernels and biases.
        seed: non-negative integer that determines all kernels.
        name: name of the model.

    Returns:
        A `keras.Model` from images to logits, float32 also under a 16-bit dtype policy.
    """
    classes = positive_integer("classes", classes)
    stem_strides = positive_integer("stem_strides", stem_strides)
    regularizer = decay_regularizer(weight_decay)
    input_dropout, feature_dropout = dropout

    def convolution(features: Tensor, number: int, filters: int, side: int, strides: int, padding: str) -> Tensor:
        initializer: Initializer = keras.initializers.HeNormal(mix_seed(seed, number))
        return keras.layers.Conv2D(
            filters,
            side,
            strides=strides,
            padding=padding,
            activation="relu",
            kernel_initializer=initializer,
            kernel_regularizer=regularizer,
            bias_regularizer=regularizer,
            name=f"conv{number}",
        )(features)

    inputs = keras.Input(input_shape, name="images")
    features = keras.layers.Dropout(input_dropout, seed=mix_seed(seed, 100), name="dropout0")(inputs)
    for number, (filters, side, strides, padding) in enumerate(CONVOLUTIONS, start=1):
        features = convolution(features, number, filters, side, strides if number > 1 else stem_strides, padding)
        if strides > 1:
            dropped = keras.layers.Dropout(feature_dropout, seed=mix_seed(seed, 100 + number), name=f"dropout{number}")
            features = dropped(features)
    # The ninth convolution has a ReLU as well (Table 1). The averages of its outputs are the logits.
    features = convolution(features, 9, classes, 1, 1, "same")
    wide = wide_dtype(keras.config.dtype_policy())
    logits = keras.layers.GlobalAveragePooling2D(dtype=wide, name="pool")(features)
    return keras.Model(inputs, logits, name=name)
