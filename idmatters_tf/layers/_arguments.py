"""What the layers and networks share: the regulariser of a decay rate, and the dtype of sums under 16-bit policies."""

import keras


def decay_regularizer(weight_decay: float) -> keras.regularizers.Regularizer | None:
    """The Keras regulariser of `weight_decay * sum(w^2) / 2`, or None; Keras' own L2 has no factor 1/2."""
    if not weight_decay >= 0:
        raise ValueError(f"Argument `weight_decay` must be 0 or more. Received: weight_decay={weight_decay}")
    return keras.regularizers.L2(weight_decay / 2) if weight_decay else None


def wide_dtype(layer: keras.layers.Layer) -> str:
    """The dtype in which a layer's sums are kept: its compute dtype, but float32 where that has 16 bits."""
    compute_dtype = keras.backend.standardize_dtype(layer.compute_dtype)
    return "float32" if compute_dtype in ("float16", "bfloat16") else compute_dtype
