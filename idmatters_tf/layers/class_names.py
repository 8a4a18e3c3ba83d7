"""Names of the classes of a classifier."""

from collections.abc import Sequence
from typing import Any

import keras

from idmatters_tf._keras_types import Shape, Tensor


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
