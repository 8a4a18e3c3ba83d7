"""Choice of the backend."""

import keras

from idmatters_tf.autodiff._interface import Backend


def current_backend() -> Backend:
    """Return the implementation of derivatives for Keras' current backend.

    Raises:
        ValueError: if the backend is neither TensorFlow nor JAX.
    """
    name = keras.backend.backend()
    if name == "tensorflow":
        from idmatters_tf.autodiff import _tensorflow

        return _tensorflow
    if name == "jax":
        from idmatters_tf.autodiff import _jax

        return _jax
    raise ValueError(f"Derivatives require Keras' TensorFlow or JAX backend. Received: {name!r}. Set KERAS_BACKEND.")
