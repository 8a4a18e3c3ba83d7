"""Ends of networks, and other parts that several of them share."""

from typing import Unpack

import keras

from idmatters_tf._conventions import batch_normalization, wide_dtype
from idmatters_tf._keras_types import Initializer, LayerOptions, Regularizer, Tensor
from idmatters_tf._seeds import mix_seed
from idmatters_tf.layers import RandomProjection
from idmatters_tf.layers.basic_block import TORCH_NORM
from idmatters_tf.models.layout import Head


def classify(features: Tensor, kind: Head, classes: int, seed: int, regularizer: Regularizer) -> Tensor:
    """Return the logits: the mean over space and the last layer, see `build_head`.

    Both use at least float32: class scores need more than bfloat16's 8 bits.
    """
    wide = wide_dtype(keras.config.dtype_policy())
    features = keras.layers.GlobalAveragePooling2D(dtype=wide, name="pool")(features)
    return build_head(kind, classes, seed, kernel_regularizer=regularizer, dtype=wide, name="head")(features)


def build_head(
    kind: Head, classes: int, seed: int, kernel_regularizer: Regularizer = None, **options: Unpack[LayerOptions]
) -> keras.layers.Layer:
    """Return the last layer of a classifier.

    Args:
        kind: see `Layout.head`.
        classes: number of classes.
        seed: non-negative integer that determines the kernel.
        kernel_regularizer: regularizer of a trained kernel.
        options: `dtype` and `name` of the layer.
    """
    if kind == "random":
        return RandomProjection(classes, seed=seed, **options)
    random: Initializer = keras.initializers.VarianceScaling(1, "fan_in", "uniform", mix_seed(seed, 1))
    initializer = "zeros" if kind == "zero" else random
    return keras.layers.Dense(classes, kernel_initializer=initializer, kernel_regularizer=kernel_regularizer, **options)


def normalize_and_rectify(features: Tensor, norm: str, regularizer: Regularizer, name: str) -> Tensor:
    """Return the features after batch normalization, as in the published Torch code, and ReLU."""
    normalized = batch_normalization(norm, regularizer, name=f"{name}_norm", **TORCH_NORM)(features)
    return keras.layers.ReLU(name=f"{name}_relu")(normalized)


def logits(features: Tensor, classes: int, regularizer: Regularizer, seed: int) -> Tensor:
    """Return the logits: the mean over space and a dense layer, initialized as in the published Torch code."""
    wide = wide_dtype(keras.config.dtype_policy())
    features = keras.layers.GlobalAveragePooling2D(dtype=wide, name="pool")(features)
    initializer: Initializer = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform", mix_seed(seed, 1))
    return keras.layers.Dense(
        classes,
        kernel_initializer=initializer,
        kernel_regularizer=regularizer,
        bias_regularizer=regularizer,
        dtype=wide,
        name="head",
    )(features)
