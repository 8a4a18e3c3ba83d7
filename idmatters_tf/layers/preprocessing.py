"""Layers for exported models: preprocessing of the papers, for raw pixels as inputs, and names of classes."""

from collections.abc import Sequence
from typing import Unpack

import keras
from keras import ops

from idmatters_tf._keras_types import LayerOptions, Shape, Tensor
from idmatters_tf.layers.wide import WideLayer


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

    def __init__(self, class_names: Sequence[str], **kwargs: Unpack[LayerOptions]):
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

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "class_names": list(self.class_names)}
