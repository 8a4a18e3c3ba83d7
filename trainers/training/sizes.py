"""Training on scaled images: a network that accepts any image size, and the scaling."""

import keras
import tensorflow as tf

from idmatters_tf.data.augment import standardize
from trainers.cli.arguments import UsageError


def accept_any_size(model: keras.Model) -> keras.Model:
    """Return a model with the same layers and weights for images of any size.

    Args:
        model: A functional model of one input, `(rows, cols, channels)`.

    Raises:
        UsageError: The layers require a fixed image size.
    """
    channels = model.input_shape[-1]
    try:
        any_size = keras.Input((None, None, channels), dtype=model.inputs[0].dtype, name="images")
        return keras.models.clone_model(model, input_tensors=any_size, clone_function=lambda layer: layer)
    except (TypeError, ValueError) as error:
        raise UsageError(f"--train-sizes needs a network for images of any size, not {model.name}.") from error


def resize(images: tf.Tensor, size: int) -> tf.Tensor:
    """Scale standardized images and standardize them again: scaling reduces the variance of the pixels.

    Args:
        images: float32, `(batch, rows, cols, channels)`.
        size: Rows and columns of the result.

    Returns:
        float32, `(batch, size, size, channels)`, each image of mean 0 and variance 1; an image of one color is zero.
    """
    return standardize(tf.image.resize(images, (size, size), antialias=True))
