"""Checks of a `fit` for what `ExactResume` cannot resume exactly."""

import inspect

import keras

from idmatters_tf._keras_internals import RunningFit
from idmatters_tf._tensorflow_internals.pipelines import is_reshuffled
from idmatters_tf.callbacks import _devices
from idmatters_tf.callbacks._sources.random_access import is_changed_by_hooks


def check_fit(model: keras.Model, fit: RunningFit) -> None:
    """Raise ValueError if a `fit` cannot be resumed exactly."""
    backend = keras.backend.backend()
    if backend not in ("tensorflow", "jax"):
        raise ValueError(f"ExactResume supports the backends tensorflow and jax. Received: {backend}")
    _devices.check_devices(model)
    if any(isinstance(callback, keras.callbacks.BackupAndRestore) for callback in fit.callbacks):
        raise ValueError(
            "ExactResume and BackupAndRestore cannot be used together. Remove BackupAndRestore from the callbacks."
        )
    # Each pass over the validation data must have the same order.
    data = fit.validation_data
    x = data[0] if isinstance(data, (tuple, list)) and len(data) else data
    if inspect.isgenerator(x):
        raise ValueError(
            "The validation data are a generator, whose position ExactResume cannot restore. Pass arrays, a "
            "tf.data.Dataset or a PyDataset."
        )
    if is_changed_by_hooks(x):
        raise ValueError(
            f"The validation data are a PyDataset whose batches change between epochs, in the `on_epoch_begin` or "
            f"`on_epoch_end` of {type(x).__name__}. Pass a dataset that does not shuffle."
        )
    if is_reshuffled(x):
        raise ValueError(
            "The validation data are a tf.data.Dataset that shuffles, in an order that ExactResume cannot restore. "
            "Remove `shuffle`, or set a seed and `reshuffle_each_iteration=False`."
        )
