"""Regularizers for decay rates, and the dtype of sums under 16-bit policies."""

import keras


def decay_regularizer(weight_decay: float) -> keras.regularizers.Regularizer | None:
    """Return the regularizer `weight_decay * sum(w^2) / 2`, or None for 0. Keras' L2 has no factor 1/2."""
    if not weight_decay >= 0:
        raise ValueError(f"Argument `weight_decay` must be 0 or more. Received: weight_decay={weight_decay}")
    return keras.regularizers.L2(weight_decay / 2) if weight_decay else None


def wide_dtype(owner: keras.layers.Layer | keras.dtype_policies.DTypePolicy) -> str:
    """Return the dtype of sums and logits: the compute dtype of a layer or policy, or float32 if that has 16 bits."""
    compute_dtype = keras.backend.standardize_dtype(owner.compute_dtype)
    return "float32" if compute_dtype in ("float16", "bfloat16") else compute_dtype
