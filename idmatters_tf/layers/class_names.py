"""The names of a classifier's classes, kept in the model."""

from collections.abc import Sequence
from typing import Any

import keras

from idmatters_tf._keras_types import Shape, Tensor


@keras.saving.register_keras_serializable(package="idmatters_tf")
class ClassNames(keras.layers.Layer):
    """Passes logits on unchanged, and keeps the names of the classes, so that a saved model can answer with names.

    ```python
    model = keras.saving.load_model("runs/quick/model.keras")
    model.get_layer("classes").class_names[model.predict(images).argmax(axis=1)[0]]
    ```

    Args:
        class_names: one string for each class, in the order of the logits.

    Input shape:
        `(batch, classes)`.

    Output shape:
        The same.
    """

    def __init__(self, class_names: Sequence[str], **kwargs: Any):
        super().__init__(**kwargs)
        names = tuple(class_names)
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError(
                f"Argument `class_names` must be one string for each class. Received: class_names={class_names!r}"
            )
        self.class_names = names

    def build(self, input_shape: Shape) -> None:
        if input_shape[-1] != len(self.class_names):
            raise ValueError(
                f"{self.name} has {len(self.class_names)} class names for {input_shape[-1]} logits. Name every class."
            )

    def call(self, inputs: Tensor) -> Tensor:
        return inputs

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "class_names": list(self.class_names)}
