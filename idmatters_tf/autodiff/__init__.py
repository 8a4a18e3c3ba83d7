"""Derivatives of functions of tensors and of Keras models, the same on Keras' TensorFlow and JAX backends.

All functions take the function and the point first:

- `function` takes one argument in the structure of the point. It consists of Keras operations and layers, or of
  operations of the current backend. It may be a built model or a layer, which is then called as it is.
- `point` is a tensor, an array or a `keras.Variable`, or a nested structure of these, all of floating point. The
  derivative by a variable is that by its value: the function receives a tensor in its place, and all layers use the
  same tensor while the function is evaluated.

The results are tensors of the current backend, in the dtypes of the point or of the outputs, and zero where a function
does not depend on a tensor. The functions can be nested in each other and used inside `tf.function`, `jax.jit` and
training steps. Elsewhere they are evaluated operation by operation.

>>> import keras, numpy as np
>>> from idmatters_tf.autodiff import gradient, hvp, jacobian
>>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
>>> x = np.array([[1.0, 2.0]], "float32")

By the inputs of a model:

>>> tuple(jacobian(model, x).shape)
(1, 1, 1, 2)

By its variables, whose values the function receives, and which the model uses inside of it:

>>> def loss(values):
...     return keras.ops.mean(model(x) ** 2)
>>> gradient(loss, model.trainable_variables)[0].numpy().ravel()
array([ 6., 12.], dtype=float32)
>>> vector = [np.ones((2, 1))]
>>> hvp(loss, model.trainable_variables, vector)[0].numpy().ravel()
array([ 6., 12.], dtype=float32)

Nothing of a model is changed: neither moving averages nor the states of random generators, metrics or losses. Layers
that draw random numbers draw the same ones at each evaluation of a derivative. Second derivatives that TensorFlow 2.21
computes wrongly (normalization by `tf.nn.moments`, bilinear resizing) are corrected; embeddings, recurrent layers and
Keras masks work.
"""

# ruff: noqa: I001 - grouped by subject, a table of contents

# Scalar functions.
from idmatters_tf.autodiff.functions import gradient, hvp, hessian

# All functions: products with the Jacobian from both sides, and the whole of it.
from idmatters_tf.autodiff.functions import jvp, vjp, linearize, jacobian, Linearization

__all__ = ["Linearization", "gradient", "hessian", "hvp", "jacobian", "jvp", "linearize", "vjp"]
