"""Base class of layers whose sums have 32 bits under 16-bit policies, and serialization of arguments."""

import inspect
import types
from typing import Unpack

import keras
from keras import ops

from idmatters_tf._conventions import wide_dtype
from idmatters_tf._keras_types import Initializer, LayerOptions, Regularizer, Shape, Tensor


def serialize_arguments(layer: keras.layers.Layer) -> dict[str, object]:
    """Return the arguments of the constructor of a layer of this package, which has attributes of the same names.

    In a subclass outside of this package, the arguments are those of the class in this package.
    """
    kind = next(kind for kind in type(layer).__mro__ if kind.__module__.startswith("idmatters_tf."))
    names = [name for name in inspect.signature(kind).parameters if name != "kwargs"]
    return {name: _serialize(getattr(layer, name)) for name in names}


def _serialize(value: object) -> object:
    if isinstance(value, types.FunctionType):
        return keras.activations.serialize(value)
    return keras.saving.serialize_keras_object(value)


class WideLayer(keras.layers.Layer):
    """Layer that keeps the shape of its inputs. The outputs are float32 if it computes in 16 bits."""

    kernel_regularizer: Regularizer

    def __init__(self, **kwargs: Unpack[LayerOptions]):
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True

    def narrow(self, tensor: Tensor) -> Tensor:
        """Cast inputs or weights to the dtype of the computations."""
        return ops.cast(tensor, self.compute_dtype)

    def wide(self, tensor: Tensor) -> Tensor:
        """Cast inputs or a branch to the dtype of the outputs."""
        return ops.cast(tensor, wide_dtype(self))

    def add_kernel(self, name: str, shape: Shape, initializer: Initializer) -> keras.Variable:
        """Add a kernel with the layer's regularizer."""
        return self.add_weight(name=name, shape=shape, initializer=initializer, regularizer=self.kernel_regularizer)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return tuple(input_shape)

    def compute_output_spec(self, inputs: Tensor, *_: object, **__: object) -> keras.KerasTensor:
        return keras.KerasTensor(inputs.shape, dtype=wide_dtype(self))

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), **serialize_arguments(self)}
