"""Names for what Keras accepts and returns without annotating it.

A tensor's class depends on the backend, and Keras' own functions carry no annotations: a type checker would take
`kernel_initializer="zeros"` to mean that only strings are allowed. These aliases say what is meant and check nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import keras
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import tensorflow as tf

    Dataset: TypeAlias = tf.data.Dataset[Any]
    Strategy: TypeAlias = tf.distribute.Strategy
else:
    # TensorFlow is imported on use.
    Dataset = Strategy = object

# A tensor of the current backend, or what `keras.ops.convert_to_tensor` takes.
Tensor: TypeAlias = Any
# A tensor or variable, or a list, tuple or dict of structures: inputs, outputs, labels and points.
Structure: TypeAlias = Any
# The shape of a tensor; None where a size is not known when the model is built.
Shape: TypeAlias = tuple[int | None, ...]
# A `keras.initializers.Initializer`, its name, its configuration, or a callable of shape and dtype.
Initializer: TypeAlias = Any
# A `keras.regularizers.Regularizer`, its name, its configuration, or None.
Regularizer: TypeAlias = Any
# A configuration, as `get_config` returns it.
Config: TypeAlias = Mapping[str, Any]
# Arguments of a method of Keras, by name.
Options: TypeAlias = dict[str, Any]
# Metrics that Keras passes to callbacks.
Logs: TypeAlias = dict[str, Any] | None


class LayerOptions(TypedDict, total=False):
    """Further arguments of a layer, see `keras.layers.Layer`."""

    name: str | None
    dtype: Any
    trainable: bool
    activity_regularizer: Regularizer


class OptimizerOptions(TypedDict, total=False):
    """Further arguments of an optimizer, see `keras.optimizers.Optimizer`."""

    weight_decay: float | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None


# An array, or a list, tuple or dict of such.
Arrays: TypeAlias = NDArray[np.generic] | Sequence["Arrays"] | Mapping[str, "Arrays"]
# A function of a tensor, the name of one in `keras.activations`, or None for the identity.
Activation: TypeAlias = Any
# A tuple of arrays (x, y) or (x, y, sample_weight), or an iterable of such batches, as a `tf.data.Dataset`.
Data: TypeAlias = Iterable[Structure]
# A loss as in `model.compile`, a function of labels and outputs, or None for the compiled loss.
Loss: TypeAlias = str | keras.losses.Loss | Callable[..., Tensor] | Mapping[str, Any] | Sequence[Any] | None
# Variables, layers for their trainable variables, or None for all trainable variables of a model.
Variables: TypeAlias = keras.Variable | keras.layers.Layer | Iterable[keras.Variable | keras.layers.Layer] | None
