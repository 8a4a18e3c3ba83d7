"""Preprocessing of images, fitted to the training images where necessary.

standardize    standardize each image to mean 0 and standard deviation 1 (the paper's code)
channels       standardize each channel to mean 0 and standard deviation 1 over the training images (Huang et al.)
pixels         subtract the mean image, and divide by the standard deviation of the result (He et al., 2015)

All but the first are applied before the augmentation, as in those papers, which therefore pads with zeros.
"""

import pathlib
from collections.abc import Sequence
from typing import Any, cast

import keras
import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmatters_tf.checkpointing import replacing
from trainers.cli.arguments import UsageError

FILE = "preprocessing.keras"


def fit(name: str, images: NDArray[np.uint8]) -> keras.layers.Layer:
    """Return the layer "channels" or "pixels" from raw pixels `(n, rows, cols, channels)` to inputs."""
    if name == "pixels":
        mean = images.mean(axis=0, dtype=np.float64)
        variance = float(np.mean([np.square(image - mean).mean() for image in images]))
        return _normalization((1, 2, 3), mean.tolist(), np.full(mean.shape, variance).tolist())
    pixels = [images[..., channel] for channel in range(images.shape[-1])]
    means, variances = ([float(f(channel, dtype=np.float64)) for channel in pixels] for f in (np.mean, np.var))
    return _normalization(-1, means, variances)


def _normalization(axis: Any, mean: ArrayLike, variance: ArrayLike) -> keras.layers.Layer:
    return keras.layers.Normalization(axis=axis, mean=mean, variance=variance, name="normalization", dtype="float32")


def apply(layer: keras.layers.Layer, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the outputs of a layer for all images."""
    return np.concatenate([np.asarray(layer(images[start : start + 1000])) for start in range(0, len(images), 1000)])


def save(layer: keras.layers.Layer, image_shape: Sequence[int], folder: pathlib.Path) -> None:
    """Save a fitted layer to a run's folder, so that exports do not need the data."""
    inputs = keras.Input(image_shape, dtype="uint8")
    with replacing(folder / FILE) as beside:
        keras.Model(inputs, layer(inputs)).save(beside)


def load(folder: pathlib.Path) -> keras.layers.Layer:
    """Return the layer saved by `save`. Raises UsageError if the file is missing or damaged."""
    path = folder / FILE
    try:
        return cast(keras.Model, keras.saving.load_model(path)).layers[-1]
    # Keras, zipfile, h5py and json raise errors of a dozen kinds.
    except Exception as error:
        problem = f"damaged ({type(error).__name__})" if path.is_file() else "missing"
        raise UsageError(
            f"{path} is {problem}. Remove {folder / 'result.json'} and repeat the training command, which fits the "
            f"layer to the images again without training."
        ) from error
