"""The papers' preprocessing as a layer, so that exported models take raw pixels."""

import keras
from keras import ops

from idmatters_tf.layers.arguments import wide_dtype


@keras.saving.register_keras_serializable(package="idmatters_tf")
class PerImageStandardization(keras.layers.Layer):
    """Each picture to mean 0 and standard deviation 1: `(x - mean) / max(std, 1 / sqrt(size))`.

    `size` is the number of values in the picture; the bound keeps pictures of a single colour finite. The same as
    `tf.image.per_image_standardization`, on every backend.

    Input shape:
        `(batch, rows, cols, channels)`, of any number type, uint8 included.

    Output shape:
        The same, in float32 (or float64 under a float64 policy).
    """

    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)

    def call(self, inputs):
        pixels = ops.cast(inputs, wide_dtype(self))
        size = ops.cast(ops.prod(ops.shape(pixels)[1:]), pixels.dtype)
        mean = ops.mean(pixels, axis=(1, 2, 3), keepdims=True)
        deviation = ops.std(pixels, axis=(1, 2, 3), keepdims=True)
        return (pixels - mean) / ops.maximum(deviation, 1.0 / ops.sqrt(size))

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, dtype=wide_dtype(self))
