"""Callback for the exact resume of `fit` after a kill."""

import contextlib
import inspect
import json
import os
import pathlib
import signal
from collections.abc import Collection, Mapping

import keras

from idmatters_tf._arguments import interval, positive_integer, seed_number
from idmatters_tf._keras_internals import RunningFit, model_of, running_fit
from idmatters_tf._keras_types import Logs
from idmatters_tf.callbacks import _devices
from idmatters_tf.callbacks._signals import PauseOnSignal
from idmatters_tf.callbacks._sources.random_access import is_changed_by_hooks
from idmatters_tf.callbacks._state_callback import SECONDS, StateCallback
from idmatters_tf.callbacks._stores import close
from idmatters_tf.callbacks._workers import Workers
from idmatters_tf.checkpointing import describe_newest
from idmatters_tf.distribute.description import ClusterDescription
from idmatters_tf.distribute.tasks import explain_lost_tasks


class ExactResume(keras.callbacks.Callback):
    """Callback that saves the state of a `fit` and resumes it when the same script is started again.

    A run that is killed at any moment and started again ends with the same weights, optimizer state and history, bit
    for bit, as an uninterrupted run: `model.fit(x, y, callbacks=[ExactResume("runs/mine", every=100)])`.

    Arrays in `fit(x, y)` are shuffled in an order that is a function of (`seed`, epoch). With `steps_per_epoch` in
    `fit`, an epoch is that number of batches of an endless sequence of passes over the data.

    State that cannot be restored raises a ValueError when training begins, after the first step, or when a checkpoint
    is saved. Supported are TensorFlow, also under the strategies of `idmatters_tf.distribute`, and JAX, also under
    `keras.distribution`, in one process. A run resumes on other devices with a warning: its results are then equal up
    to rounding only.

    On several workers, pass the callback on all of them, with a folder that they share. A pause or `stop_training` on
    one worker stops all after the same step. An error of one worker is raised on all.

    The state is copied to host memory between two batches, which requires the memory of one more copy of the variables,
    and a thread writes the copy. The next state is copied after the previous write has ended, so that a kill costs less
    than twice `every` batches. The last checkpoint is complete when `fit` returns. If `fit` raises, including
    KeyboardInterrupt, the write is completed before the process ends and before the folder is used again.

    `pause()`, or a signal in `pause_on`, saves the run after the current batch and ends `fit`, without validation and
    without `on_epoch_end` of other callbacks. The run continues when it is started again. If a callback sets
    `model.stop_training`, as `EarlyStopping` does, the run is finished.

    For a finished run, the same `fit` returns at once with the same history and a warning. With more `epochs` it
    continues, unless `stop_training` ended it. The folder belongs to one `fit` and is locked while `fit` runs. After an
    exception, the lock is kept until this process or its next `fit` in the same folder ends.

    Args:
        folder: folder of the checkpoints, which is created if it does not exist.
        every: interval between checkpoints: a number of batches, counted from the beginning of training, or a text such
            as "100 steps", "2 epochs" or "10 minutes" (also seconds or hours). A checkpoint is always saved at the end
            of training.
        keep: number of checkpoints to keep.
        seed: seed of the order in which `fit` shuffles arrays and the batches of a `PyDataset`, a non-negative integer.
        ignore: attributes of callbacks, layers, optimizers and losses that do not affect training and are not restored,
            such as files and locks, named as in "Logger.file".
        pause_on: a signal, or several, that pause the run while `fit` is running, such as `signal.SIGTERM`. A second
            one has its usual effect. `fit` must run in the main thread.
        replay: if True, a resumed run reads all earlier batches of a `tf.data.Dataset`, a generator, a torch
            `DataLoader` or a `PyDataset` again and drops them, in place of restoring a position. The batches must be
            equal in each process, which their checksums confirm.
        identity: further values by name that identify the run, such as hyperparameters and a checksum of the data. They
            must be JSON values. A checkpoint of a run with other values raises OtherRun.

    Attributes:
        resumed_at: number of completed training batches when this `fit` began. 0 for a new run, None before `fit`.
        is_paused: True if the last `fit` was paused, so that the run is not finished.

    Raises:
        ValueError: by `fit`, if state cannot be restored or the folder is not writable.
        idmatters_tf.checkpointing.OtherRun: a ValueError, by `fit`, if the checkpoint belongs to another identity or
            another configuration of the model, an optimizer, the loss, the metrics or the data. The message names the
            cause.
        idmatters_tf.checkpointing.FolderInUse: by `fit`, if another process uses the folder.
        idmatters_tf.checkpointing.FolderLost: by `fit`, if the folder or its lock was removed during the run.
        OSError: by `fit`, if a checkpoint cannot be written. Earlier ones are unchanged. Raised when the next
            checkpoint is due or at the end of training.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: int | str = "epoch",
        keep: int = 2,
        seed: int = 0,
        ignore: Collection[str] = (),
        identity: Mapping[str, object] | None = None,
        pause_on: int | Collection[int] | None = None,
        replay: bool = False,
    ):
        super().__init__()
        # Absolute, since the program may change the current folder during `fit`. Links lead to the same lock.
        self.folder = pathlib.Path(folder).resolve()
        self.name = os.fspath(folder)
        self.every = every
        self.interval = interval(every, "step", ("epoch", "step", *SECONDS), self)
        self.keep = positive_integer("keep", keep, self)
        self.seed = seed_number(seed, self)
        self.ignore = (ignore,) if isinstance(ignore, str) else tuple(ignore)
        # Tuples become lists, as in a checkpoint.
        self.identity: dict[str, object] = json.loads(json.dumps(dict(identity or {})))
        signals = () if pause_on is None else (pause_on,) if isinstance(pause_on, int) else pause_on
        self.replay = replay
        self.pause_on = tuple(map(signal.Signals, signals))
        self.resumed_at: int | None = None
        self.is_paused = self.pause_requested = False
        self._handler: PauseOnSignal | None = None

    def pause(self) -> None:
        """Save the run after the current batch and end `fit`. The run continues when it is started again.

        It may be called by callbacks, signal handlers and other threads. Without a running `fit` it has no effect.
        """
        self.pause_requested = True

    def on_train_begin(self, logs: Logs = None) -> None:
        model = model_of(self)
        fit = running_fit(model)
        if fit is None:
            raise ValueError("ExactResume requires Keras' own `fit`. Pass it to `fit` as a callback.")
        workers = Workers(model)
        self.is_paused = self.pause_requested = False
        self._handler = PauseOnSignal(fit, self.pause, self.pause_on)

        def append():
            _check_fit(model, fit)
            if sum(isinstance(callback, ExactResume) for callback in fit.callbacks) > 1:
                raise ValueError("There is more than one ExactResume among the callbacks. Remove all but one.")
            # Keras is iterating over this list: an appended callback is called after all others at each event.
            last = StateCallback(self, fit, model, workers)
            last.set_params(self.params)
            last.set_model(model)
            fit.callbacks.append(last)

        workers.run(append)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        # If no callback has this method, Keras calls them in another thread while training continues.
        pass

    def close(self) -> None:
        """Complete the write in progress and release the folder, after an exception in `fit`."""
        self.release_signals()
        close(self.folder)

    def release_signals(self) -> None:
        """Restore the handlers of the signals in `pause_on`, at the end of `fit`."""
        if self._handler is not None:
            self._handler.close()

    def surround_fit(self, cluster: ClusterDescription | None) -> contextlib.AbstractContextManager[None]:
        """Return a context in which errors name lost workers and the newest checkpoint.

        `fit` enters it under the strategies of `idmatters_tf.distribute`.
        """
        if cluster is None:
            return contextlib.nullcontext()
        return explain_lost_tasks(cluster, lambda: describe_newest(self.folder))


def _check_fit(model: keras.Model, fit: RunningFit) -> None:
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
