"""Derivatives of functions of tensors and of Keras models, on Keras' TensorFlow and JAX backends.

All functions take `function` and `point` as their first arguments:

- `function` takes one argument in the structure of the point. It consists of Keras operations and layers, or of
  operations of the current backend. It may be a built model or a layer.
- `point` is a tensor, an array or a `keras.Variable`, or a nested structure of these, with floating-point dtypes. For a
  variable, the derivative is taken with respect to its value: the function receives a tensor in its place, and all
  layers use this tensor while the function is evaluated.

The results are tensors of the current backend, in the dtypes of the point or of the outputs. They are zero where the
function does not depend on a tensor. The functions can be nested and used inside `tf.function`, `jax.jit` and training
steps. Elsewhere they are evaluated eagerly.

>>> import keras, numpy as np
>>> from idmatters_tf.autodiff import gradient, hvp, jacobian
>>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
>>> x = np.array([[1.0, 2.0]], "float32")

With respect to the inputs of a model:

>>> tuple(jacobian(model, x).shape)
(1, 1, 1, 2)

With respect to its variables, whose values the function receives and the model uses:

>>> def loss(values):
...     return keras.ops.mean(model(x) ** 2)
>>> gradient(loss, model.trainable_variables)[0].numpy().ravel()
array([ 6., 12.], dtype=float32)
>>> vector = [np.ones((2, 1))]
>>> hvp(loss, model.trainable_variables, vector)[0].numpy().ravel()
array([ 6., 12.], dtype=float32)

Models are not changed, including moving averages and the states of random generators, metrics and losses. Random layers
draw the same numbers at each evaluation of a derivative. Second derivatives that TensorFlow 2.21 computes incorrectly
(normalization by `tf.nn.moments`, bilinear resizing, max pooling that keeps the shape) are corrected. Embeddings,
recurrent layers and Keras masks are supported.
"""

# ruff: noqa: I001 - grouped by subject, a table of contents

# Scalar functions.
from idmatters_tf.autodiff.functions import gradient, hvp, hessian

# All functions: products with the Jacobian from both sides, and dense Jacobians.
from idmatters_tf.autodiff.functions import jvp, vjp, linearize, jacobian, Linearization

# For the operators of this package, not public: derivatives of flat lists of tensors, and compiled functions.
from idmatters_tf.autodiff.functions import current_backend as current_backend
from idmatters_tf.autodiff._protocol import LinearMap as LinearMap

__all__ = [
    "Linearization",
    "gradient",
    "hessian",
    "hvp",
    "jacobian",
    "jvp",
    "linearize",
    "vjp",
]
