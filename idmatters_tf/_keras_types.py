"""Names for what Keras accepts and returns without annotating it.

A tensor's class depends on the backend, and Keras' own functions carry no annotations: a type checker would take
`kernel_initializer="zeros"` to mean that only strings are allowed. These aliases say what is meant and check nothing.
"""

from typing import Any, TypeAlias

# A tensor of the current backend, or what `keras.ops.convert_to_tensor` takes.
Tensor: TypeAlias = Any
# The shape of a tensor; None where a size is not known when the model is built.
Shape: TypeAlias = tuple[int | None, ...]
# A `keras.initializers.Initializer`, its name, its configuration, or a callable of shape and dtype.
Initializer: TypeAlias = Any
# A `keras.regularizers.Regularizer`, its name, its configuration, or None.
Regularizer: TypeAlias = Any
# A function of a tensor, the name of one in `keras.activations`, or None for the identity.
Activation: TypeAlias = Any
