"""What is done to pictures before they reach a network, fitted to the training pictures where need be.

standardize    each picture to mean 0 and deviation 1, by itself (the paper's code)
channels       mean 0 and deviation 1 of each channel over the training pictures (He et al., Huang et al.)
zca            global contrast normalisation and ZCA whitening (Springenberg et al.)

The latter two come before the augmentation, as in those papers, so that what is padded is padded with zeros.
"""

import keras
import numpy as np

from idmatters_tf.layers import PerImageStandardization, ZCAWhitening
from trainers.run.files import replacing

NAMES = ("standardize", "channels", "zca")
FILE = "preprocessing.keras"


def fit(name, images):
    """A layer from raw pixels to what the network takes.

    Args:
        name: one of `NAMES`.
        images: the training pictures, uint8 `(n, rows, cols, channels)`.
    """
    if name == "standardize":
        return PerImageStandardization(name="standardization", dtype="float32")
    if name == "zca":
        layer = ZCAWhitening(name="whitening", dtype="float32")
        layer.adapt(images)
        return layer
    pixels = [images[..., channel] for channel in range(images.shape[-1])]
    means, variances = ([float(f(channel, dtype=np.float64)) for channel in pixels] for f in (np.mean, np.var))
    return keras.layers.Normalization(axis=-1, mean=means, variance=variances, name="normalization", dtype="float32")


def apply(layer, images):
    """The layer's outputs for all pictures, float32."""
    return np.concatenate([np.asarray(layer(images[start : start + 1000])) for start in range(0, len(images), 1000)])


def save(layer, image_shape, folder):
    """Keeps a fitted layer in a run's folder: exports without the data need it."""
    inputs = keras.Input(image_shape, dtype="uint8")
    with replacing(folder / FILE) as beside:
        keras.Model(inputs, layer(inputs)).save(beside)


def load(folder):
    """The layer that `save` kept, or None."""
    path = folder / FILE
    return keras.saving.load_model(path).layers[-1] if path.is_file() else None
