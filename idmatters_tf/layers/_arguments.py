"""Serialization of arguments, regularizers for decay rates, and the dtype of sums under 16-bit policies."""

import inspect
import types
from typing import Any

import keras


def serialize_arguments(layer: keras.layers.Layer, kind: type[keras.layers.Layer]) -> dict[str, Any]:
    """Return the arguments of a constructor for `get_config`.

    Args:
        layer: layer with an attribute for each argument, of the same name.
        kind: class with the constructor, `type(layer)` or a base class of it.
    """
    names = [name for name in inspect.signature(kind).parameters if name != "kwargs"]
    return {name: _serialize(getattr(layer, name)) for name in names}


def _serialize(value: Any) -> Any:
    if isinstance(value, types.FunctionType):
        return keras.activations.serialize(value)
    return keras.saving.serialize_keras_object(value)


def decay_regularizer(weight_decay: float) -> keras.regularizers.Regularizer | None:
    """Return the regularizer `weight_decay * sum(w^2) / 2`, or None for 0. Keras' L2 has no factor 1/2."""
    if not weight_decay >= 0:
        raise ValueError(f"Argument `weight_decay` must be 0 or more. Received: weight_decay={weight_decay}")
    return keras.regularizers.L2(weight_decay / 2) if weight_decay else None


def wide_dtype(owner: keras.layers.Layer | keras.dtype_policies.DTypePolicy) -> str:
    """Return the dtype of sums and logits: the compute dtype of a layer or policy, or float32 if that has 16 bits."""
    compute_dtype = keras.backend.standardize_dtype(owner.compute_dtype)
    return "float32" if compute_dtype in ("float16", "bfloat16") else compute_dtype
