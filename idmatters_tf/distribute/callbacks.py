"""Callbacks on several workers."""

import weakref

import keras
import numpy as np

from idmatters_tf._keras_internals import ORBAX_CHECKPOINTS_SINCE_3_14, model_of
from idmatters_tf._keras_types import Logs
from idmatters_tf.distribute.description import find_cluster
from idmatters_tf.distribute.tasks import add_over_workers, known_cluster

WRITE_FILES = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
    *ORBAX_CHECKPOINTS_SINCE_3_14,
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

    `fit` recognizes Keras' own callbacks and their subclasses. Whether another callback writes files is unknown: pass
    it to `chief_only`, or let each worker write to a file of its own.

    Args:
        *callbacks: callbacks for `fit`.

    Raises:
        ValueError: a callback changes training, or restores it on the chief alone.
    """
    for callback in callbacks:
        refuse_backup(callback)
        if isinstance(callback, CHANGE_TRAINING):
            raise ValueError(
                f"{type(callback).__name__} changes training and must run on all workers. Pass it to `fit` without "
                f"`chief_only`."
            )
    if not is_chief():
        return []
    _of_chief.update(callbacks)
    return list(callbacks)


def is_chief() -> bool:
    """Return True on the chief, and in a single process.

    The cluster is that of the last `multi_worker_strategy`, or else the one that `find_cluster` returns. For example,
    `model.fit(x, y, verbose="auto" if is_chief() else 0)` shows one progress bar.
    """
    cluster = known_cluster() or find_cluster()
    return cluster is None or cluster.is_chief


def is_chief_only(callback: keras.callbacks.Callback) -> bool:
    """Return True if `chief_only` has returned a callback."""
    return callback in _of_chief


def refuse_backup(callback: keras.callbacks.Callback) -> None:
    """Raise ValueError for a `BackupAndRestore`, which restores one worker."""
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        raise ValueError(
            "BackupAndRestore restores the epoch of one worker, and the others train in another one. Use "
            "idmatters_tf.callbacks.ExactResume on all workers."
        )


class StopTogether(keras.callbacks.Callback):
    """Callback that stops training on all workers after the same step if one of them is to stop."""

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        model = model_of(self)
        flags = add_over_workers(model.distribute_strategy, np.array([bool(model.stop_training)], np.int32))
        model.stop_training = bool(flags[0])

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self.on_train_batch_end(0)
