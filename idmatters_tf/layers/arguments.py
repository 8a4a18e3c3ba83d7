"""Checks of the arguments of layers and networks, and the dtype of sums under 16-bit policies."""

import keras


def positive_integer(argument, value, layer=None):
    """The value, or a ValueError that names the argument, the layer (if any) and what came."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
        raise ValueError(
            f"Argument `{argument}`{_of(layer)} must be a positive integer. Received: {argument}={value!r}"
        )
    return int(value)


def one_of(argument, value, allowed, layer=None):
    """The value if it is among those allowed, or a ValueError that lists them."""
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"Argument `{argument}`{_of(layer)} must be one of {choices}. Received: {argument}={value!r}")
    return value


def decay_regularizer(weight_decay):
    """The Keras regulariser of `weight_decay * sum(w^2) / 2`, or None; Keras' own L2 has no factor 1/2."""
    if not weight_decay >= 0:
        raise ValueError(f"Argument `weight_decay` must be 0 or more. Received: weight_decay={weight_decay}")
    return keras.regularizers.L2(weight_decay / 2) if weight_decay else None


def _of(layer):
    return "" if layer is None else f" of {type(layer).__name__}"


def wide_dtype(layer):
    """The dtype in which a layer's sums are kept: its compute dtype, but float32 where that has 16 bits."""
    compute_dtype = keras.backend.standardize_dtype(layer.compute_dtype)
    return "float32" if compute_dtype in ("float16", "bfloat16") else compute_dtype
