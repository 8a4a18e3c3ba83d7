"""What is done to images before they reach a network, fitted to the training images where need be.

standardize    each image to mean 0 and standard deviation 1, by itself (the paper's code)
channels       each channel to mean 0 and standard deviation 1 over the training images (Huang et al.)
pixels         the mean image subtracted, divided by the one standard deviation of what is left (He et al., 2015)
zca            global contrast normalisation and ZCA whitening (Springenberg et al.)

All but the first come before the augmentation, as in those papers, so that its padding is with zeros.
"""

import pathlib
import typing
from collections.abc import Sequence
from typing import Any, Literal, get_args

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf._replacing import replacing
from idmatters_tf.layers import PerImageStandardization, ZCAWhitening
from trainers.cli.arguments import UsageError

Preprocessing = Literal["standardize", "channels", "pixels", "zca"]
NAMES: tuple[Preprocessing, ...] = get_args(Preprocessing)
FILE = "preprocessing.keras"


def fit(name: Preprocessing, images: NDArray[np.uint8]) -> keras.layers.Layer:
    """A layer from raw pixels to what the network takes.

    Args:
        name: one of `NAMES`.
        images: the training images, uint8 `(n, rows, cols, channels)`.
    """
    if name == "standardize":
        return PerImageStandardization(name="standardization", dtype="float32")
    if name == "zca":
        layer = ZCAWhitening(name="whitening", dtype="float32")
        layer.adapt(images)
        return layer
    if name == "pixels":
        mean = images.mean(axis=0, dtype=np.float64)
        variance = float(np.mean([np.square(image - mean).mean() for image in images]))
        return _normalization((1, 2, 3), mean.tolist(), np.full(mean.shape, variance).tolist())
    pixels = [images[..., channel] for channel in range(images.shape[-1])]
    means, variances = ([float(f(channel, dtype=np.float64)) for channel in pixels] for f in (np.mean, np.var))
    return _normalization(-1, means, variances)


def _normalization(axis: Any, mean: Any, variance: Any) -> keras.layers.Layer:
    return keras.layers.Normalization(axis=axis, mean=mean, variance=variance, name="normalization", dtype="float32")


def apply(layer: keras.layers.Layer, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The layer's outputs for all images."""
    return np.concatenate([np.asarray(layer(images[start : start + 1000])) for start in range(0, len(images), 1000)])


def save(layer: keras.layers.Layer, image_shape: Sequence[int], folder: pathlib.Path) -> None:
    """Keeps a fitted layer in a run's folder, so that exports do not need the data."""
    inputs = keras.Input(image_shape, dtype="uint8")
    with replacing(folder / FILE) as beside:
        keras.Model(inputs, layer(inputs)).save(beside)


def load(folder: pathlib.Path) -> keras.layers.Layer | None:
    """The layer that `save` kept, or None. Raises UsageError where it is damaged."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        return typing.cast(keras.Model, keras.saving.load_model(path)).layers[-1]
    # Keras, zipfile, h5py and json raise errors of a dozen kinds.
    except Exception as error:
        raise UsageError(
            f"{path} is damaged ({type(error).__name__}). Remove it, and train again with the same command: the images "
            f"have to be seen again."
        ) from error
