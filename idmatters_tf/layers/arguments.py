"""Checks of layer arguments, and the dtype of sums under 16-bit policies."""

import keras


def positive_integer(argument, value, layer):
    """The value, or a ValueError that names the argument, the layer and what came."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
        raise ValueError(
            f"Argument `{argument}` of {type(layer).__name__} must be a positive integer. "
            f"Received: {argument}={value!r}"
        )
    return int(value)


def one_of(argument, value, allowed, layer):
    """The value if it is among those allowed, or a ValueError that lists them."""
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(
            f"Argument `{argument}` of {type(layer).__name__} must be one of {choices}. Received: {argument}={value!r}"
        )
    return value


def wide_dtype(layer):
    """The dtype in which a layer's sums are kept: its compute dtype, but float32 where that has 16 bits."""
    compute_dtype = keras.backend.standardize_dtype(layer.compute_dtype)
    return "float32" if compute_dtype in ("float16", "bfloat16") else compute_dtype
