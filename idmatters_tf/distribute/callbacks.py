"""Callbacks on several workers."""

import weakref

import keras

from idmatters_tf.distribute.description import find_cluster

WRITE_FILES = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
)
CHANGE_TRAINING = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.SwapEMAWeights,
    keras.callbacks.TerminateOnNaN,
)
# Callbacks returned by `chief_only`.
_of_chief: weakref.WeakSet[keras.callbacks.Callback] = weakref.WeakSet()


def chief_only(*callbacks: keras.callbacks.Callback) -> list[keras.callbacks.Callback]:
    """Return the callbacks on the chief, and an empty list on other workers.

    Callbacks that write files, such as `ModelCheckpoint`, `CSVLogger` and `TensorBoard`, belong on the chief: several
    processes that write one file damage it. Callbacks that change training, such as `EarlyStopping`, belong on all
    workers, since training that stops on one worker fails on all of them. A callback on the chief must not call
    `evaluate`, `predict` or `metric.result()`, which wait for all workers.

    Args:
        *callbacks: callbacks for `fit`.

    Raises:
        ValueError: a callback changes training.
    """
    for callback in callbacks:
        if isinstance(callback, CHANGE_TRAINING):
            raise ValueError(
                f"{type(callback).__name__} changes training and must run on all workers. Pass it to `fit` without "
                f"`chief_only`."
            )
    cluster = find_cluster()
    if cluster is not None and not cluster.is_chief:
        return []
    _of_chief.update(callbacks)
    return list(callbacks)


def is_chief_only(callback: keras.callbacks.Callback) -> bool:
    """Return True if `chief_only` has returned a callback."""
    return callback in _of_chief
