"""Conventions of layers and models: decay rates, sums in 32 bits under 16-bit policies, channels, and normalization."""

from typing import Any

import keras

from idmatters_tf._keras_types import Regularizer


def decay_regularizer(weight_decay: float) -> keras.regularizers.Regularizer | None:
    """Return the regularizer `weight_decay * sum(w^2) / 2`, or None for 0. Keras' L2 has no factor 1/2."""
    if not weight_decay >= 0:
        raise ValueError(f"Argument `weight_decay` must be 0 or more. Received: weight_decay={weight_decay}")
    return keras.regularizers.L2(weight_decay / 2) if weight_decay else None


def wide_dtype(owner: keras.layers.Layer | keras.dtype_policies.DTypePolicy) -> str:
    """Return the dtype of sums and logits: the compute dtype of a layer or policy, or float32 if that has 16 bits."""
    compute_dtype = keras.backend.standardize_dtype(owner.compute_dtype)
    return "float32" if compute_dtype in ("float16", "bfloat16") else compute_dtype


def channel_axis(data_format: str | None = None) -> int:
    """Return the axis of the channels in a batch of images; for None, with Keras' setting."""
    return 1 if (data_format or keras.config.image_data_format()) == "channels_first" else 3


def batch_normalization(
    norm: str, regularizer: Regularizer = None, data_format: str | None = None, **options: Any
) -> keras.layers.BatchNormalization:
    """Return a batch normalization of the channels.

    Args:
        norm: "batch", or "synchronized" for statistics over all replicas.
        regularizer: regularizer of scale and shift.
        data_format: "channels_last", "channels_first" or None for Keras' setting.
        options: see `keras.layers.BatchNormalization`.
    """
    return keras.layers.BatchNormalization(
        axis=channel_axis(data_format),
        gamma_regularizer=regularizer,
        beta_regularizer=regularizer,
        synchronized=norm == "synchronized",
        **options,
    )
