"""Layers for exported models: preprocessing of the papers, for raw pixels as inputs, and names of classes."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike, NDArray

from idmatters_tf._keras_types import Shape, Tensor
from idmatters_tf.layers._arguments import WideLayer, wide_dtype


@keras.saving.register_keras_serializable(package="idmatters_tf")
class PerImageStandardization(WideLayer):
    """Standardization of each image to mean 0 and standard deviation 1: `(x - mean) / max(std, 1 / sqrt(size))`.

    `size` is the number of values in the image. The lower bound avoids a division by zero for images of a single color.
    The outputs equal those of `tf.image.per_image_standardization`, on every backend.

    Input shape:
        `(batch, rows, cols, channels)`, of any number type, such as uint8.

    Output shape:
        The same, in float32 (or float64 under a float64 policy).
    """

    def call(self, inputs: Tensor) -> Tensor:
        pixels: Tensor = self.wide(inputs)
        shape: Tensor = ops.shape(pixels)
        size: Tensor = ops.sqrt(ops.cast(ops.prod(shape[1:]), pixels.dtype))
        mean: Tensor = ops.mean(pixels, axis=(1, 2, 3), keepdims=True)
        deviation = ops.std(pixels, axis=(1, 2, 3), keepdims=True)
        return (pixels - mean) / ops.maximum(deviation, 1.0 / size)


@keras.saving.register_keras_serializable(package="idmatters_tf")
class ZCAWhitening(WideLayer):
    """Global contrast normalization and ZCA whitening: `(g(x) - mean) P`, the preprocessing of All-CNN.

    `g` subtracts the mean of an image and scales it to the norm `scale`. P is `(C + filter_bias I)^(-1/2)` for the
    covariance C of the training images after `g`: the matrix that decorrelates the pixels and changes the images least.
    `adapt` fits it. It is saved with the model and not trained.

    Source: Springenberg et al. (2014), section 3.1, who refer to Goodfellow et al. (2013). The constants are those of
    the latter's published code (pylearn2: scale 55, filter bias 0.1).

    Args:
        scale: norm of an image after `g`.
        filter_bias: term added to the eigenvalues of the covariance.

    Input shape:
        `(batch, rows, cols, channels)` with known sizes, of any number type, such as uint8.

    Output shape:
        The same, in float32 (or float64 under a float64 policy).

    Example:

    >>> layer = ZCAWhitening()
    >>> layer.adapt(np.random.default_rng(0).integers(0, 256, (50, 4, 4, 3)))
    >>> tuple(layer(np.zeros((2, 4, 4, 3), "uint8")).shape)
    (2, 4, 4, 3)
    """

    def __init__(self, scale: float = 55.0, filter_bias: float = 0.1, **kwargs: Any):
        super().__init__(**kwargs)
        self.scale = float(scale)
        self.filter_bias = float(filter_bias)

    def build(self, input_shape: Shape) -> None:
        if len(input_shape) != 4 or None in tuple(input_shape[1:]):
            raise ValueError(
                f"Layer {self.name} needs images of known size, (batch, rows, cols, channels). Received: "
                f"input_shape={tuple(input_shape)}"
            )
        size = math.prod(known for known in input_shape[1:] if known is not None)
        fixed = {"dtype": wide_dtype(self), "trainable": False}
        self.mean = self.add_weight(name="mean", shape=(size,), initializer="zeros", **fixed)
        self.matrix = self.add_weight(name="matrix", shape=(size, size), initializer="identity", **fixed)

    def adapt(self, images: ArrayLike) -> None:
        """Fit mean and matrix to training images, in float64. Images of 3,072 values take about ten seconds.

        Args:
            images: `(n, rows, cols, channels)`.
        """
        images = np.asarray(images)
        if not self.built:
            self.build(images.shape)
        total: Any = 0.0
        products: Any = 0.0
        for start in range(0, len(images), 5000):
            rows = self._normalized(images[start : start + 5000].astype(np.float64))
            total = total + rows.sum(axis=0)
            products = products + rows.T @ rows
        mean = total / len(images)
        values, vectors = np.linalg.eigh(products / len(images) - np.outer(mean, mean))
        # Rounding may leave eigenvalues just below zero.
        roots = np.sqrt(np.maximum(values, 0) + self.filter_bias)
        if not roots.min() > 0:
            raise ValueError(
                f"The covariance of the images is singular ({len(images)} images of {len(mean)} values). Received: "
                f"filter_bias=0. Use a positive filter_bias."
            )
        self.mean.assign(mean)
        self.matrix.assign((vectors / roots) @ vectors.T)

    def _normalized(self, pixels: NDArray[np.float64]) -> NDArray[np.float64]:
        rows = pixels.reshape(len(pixels), -1)
        rows = rows - rows.mean(axis=1, keepdims=True)
        return self.scale * rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-8)

    def call(self, inputs: Tensor) -> Tensor:
        pixels: Tensor = self.wide(inputs)
        rows: Tensor = ops.reshape(pixels, (-1, math.prod(inputs.shape[1:])))
        rows: Tensor = rows - ops.mean(rows, axis=1, keepdims=True)
        norms = ops.sqrt(ops.sum(ops.square(rows), axis=1, keepdims=True))
        rows: Tensor = self.scale * rows / ops.maximum(norms, 1e-8)
        return ops.reshape(ops.matmul(rows - self.mean, self.matrix), (-1, *inputs.shape[1:]))


@keras.saving.register_keras_serializable(package="idmatters_tf")
class ClassNames(keras.layers.Layer):
    """Names of the classes, saved with the model. The layer returns the logits unchanged.

    ```python
    model = keras.saving.load_model("runs/quick/model.keras")
    model.get_layer("classes").class_names[model.predict(images).argmax(axis=1)[0]]
    ```

    Args:
        class_names: one string per class, in the order of the logits.

    Input shape:
        `(batch, classes)`.

    Output shape:
        The same as the input shape.
    """

    def __init__(self, class_names: Sequence[str], **kwargs: Any):
        super().__init__(autocast=False, **kwargs)
        names = tuple(class_names)
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError(
                f"Argument `class_names` must be one string for each class. Received: class_names={class_names!r}"
            )
        self.class_names = names

    def build(self, input_shape: Shape) -> None:
        if input_shape[-1] != len(self.class_names):
            raise ValueError(
                f"Layer {self.name} has {len(self.class_names)} class names for {input_shape[-1]} logits. Give each "
                f"class a name."
            )

    def call(self, inputs: Tensor) -> Tensor:
        return inputs

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return tuple(input_shape)

    def compute_output_spec(self, inputs: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "class_names": list(self.class_names)}
