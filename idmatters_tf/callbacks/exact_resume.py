"""Callback for the exact resume of `fit` after a kill."""

import contextlib
import json
import os
import pathlib
import signal
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import keras

from idmatters_tf._arguments import interval, positive_integer, seed_number
from idmatters_tf._keras_internals import RunningFit, model_of, record_fits, running_fit
from idmatters_tf._keras_types import Logs
from idmatters_tf._presentation.progress import Progress
from idmatters_tf.callbacks._encoding import Saved, Snapshot
from idmatters_tf.callbacks._run_state import RunState
from idmatters_tf.callbacks._stores import Store
from idmatters_tf.callbacks._workers import Workers
from idmatters_tf.checkpointing import describe_newest
from idmatters_tf.distribute.description import ClusterDescription
from idmatters_tf.distribute.tasks import check_equal, explain_lost_tasks

SECONDS = {"second": 1, "hour": 3600, "minute": 60}
record_fits()


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
    than twice `every` batches. The last checkpoint is complete when `fit` returns or raises, also KeyboardInterrupt.

    `pause()`, or a signal in `pause_on`, saves the run after the current batch and ends `fit`, without validation and
    without `on_epoch_end` of other callbacks. The run continues when it is started again. If a callback sets
    `model.stop_training`, as `EarlyStopping` does, the run is finished.

    For a finished run, the same `fit` returns at once with the same history and a warning. With more `epochs` it
    continues, unless `stop_training` ended it. The folder belongs to one `fit` and is locked while `fit` runs.

    Args:
        folder: folder of the checkpoints, which is created if it does not exist.
        every: interval between checkpoints: a number of batches, counted from the beginning of training, or a text such
            as "100 steps", "2 epochs" or "10 minutes" (also seconds or hours). A checkpoint is always saved at the end
            of training.
        keep: number of checkpoints to keep, besides one that is written.
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

    # `fit` calls this callback after all others at each event, see `record_fits`.
    is_last = True

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
        # Objects of the running `fit`.
        self._fit: RunningFit
        self._workers: Workers
        self._state: RunState
        self._store: Store
        # Checkpoint to resume from, until training has resumed.
        self._pending: Saved | None = None

    def pause(self) -> None:
        """Save the run after the current batch and end `fit`. The run continues when it is started again.

        It may be called by callbacks, signal handlers and other threads. Without a running `fit` it has no effect.
        """
        self.pause_requested = True

    def surround_fit(self, cluster: ClusterDescription | None) -> contextlib.AbstractContextManager[None]:
        """Return a context in which errors name lost workers and the newest checkpoint.

        `fit` enters it under the strategies of `idmatters_tf.distribute`.
        """
        if cluster is None:
            return contextlib.nullcontext()
        return explain_lost_tasks(cluster, lambda: describe_newest(self.folder))

    def on_train_begin(self, logs: Logs = None) -> None:
        fit = running_fit(model_of(self))
        if fit is None:
            raise ValueError("ExactResume requires Keras' own `fit`. Pass it to `fit` as a callback.")
        self._fit, self._workers = fit, Workers(fit.model)
        self.resumed_at = self._step = self._epoch = 0
        self.is_paused = self.pause_requested = False
        # True if the last batch was not that of its epoch, and True if the script has ended the run by `stop_training`.
        self._is_within = self._is_ended = False
        # True after the first training step, after a validation has begun, and after the last batch of an epoch.
        self._is_checked = self._is_tested = self._has_ended = False
        fit.at_end.enter_context(_pausing_on(self.pause_on, self.pause))
        self._workers.run(self._check_and_read)
        self._state.build()
        self._step = fit.initial_epoch * self._steps
        check_equal(self._workers.names, self._workers.run(self._describe_and_lock))
        self._pending = self._state.load()
        if self._pending is not None:
            self._resume_from(self._pending)
        self._state.mark_unfinished()
        fit.skip_ends_of_epochs(self._pauses_within, self)
        self._saved_at = time.monotonic()

    def _check_and_read(self):
        """Check `fit`, and read the first batch of its data."""
        self._state = RunState(self, self._fit, self._workers)
        # With its copy of the variables.
        self._fit.at_end.callback(delattr, self, "_state")
        self._steps = self._state.source.steps_per_epoch

    def _describe_and_lock(self):
        """Describe the training run and lock the folder."""
        described = self._state.describe([each for each in self._fit.callbacks if each is not self])
        self._store = Store(self._workers.folder(self.folder), self.keep)
        self._fit.at_end.callback(self._store.close)
        return described

    def _resume_from(self, saved):
        """Restore a checkpoint and continue `fit` there."""
        # A run that the script has stopped does not continue.
        epoch = max(saved["epoch"], self._fit.epochs) if saved["ended"] else saved["epoch"]
        self.resumed_at = self._step = saved["epoch"] * self._steps + saved["batch"]
        if epoch >= self._fit.epochs:
            reason = "a callback stopped it" if saved["ended"] else f"`fit` was called with epochs={self._fit.epochs}"
            warnings.warn(
                f"The run in {self.name} is finished and was not trained further: it ended in epoch "
                f"{saved['epoch']}, and {reason}. Pass another folder to ExactResume for a new run, in "
                f'a loop f"runs/seed-{{seed}}".',
                stacklevel=2,
            )
        else:
            with Progress(None, "resume", bool((self.params or {}).get("verbose"))) as progress:
                progress.say(f"Resuming from step {self._step} of {self.name}")
        self._state.resume(saved)
        self._fit.start_at_epoch(epoch)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._epoch = epoch
        offset = 0
        if self._pending is not None and self._pending["batch"]:
            # Keras has reset the metrics, and the other callbacks have handled the beginning of the epoch again.
            self._state.restore(self._pending)
            offset = self._pending["batch"]
            self._fit.begin_epoch_at(offset)
        self._pending = None
        self._state.source.seek(epoch, offset)

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        is_last = batch + self._fit.steps_per_execution >= self._steps
        # A smaller last batch is traced again.
        if not self._is_checked or (is_last and not self._has_ended):
            self._begin_traced("on_train_batch_end")
        self._has_ended |= is_last

    def _begin_traced(self, event):
        self._state.reached.begin_step()
        self._fit.before_next(event, self._state.reached.end_step)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        # With several steps per execution the last step may be beyond the epoch.
        done = min(batch + 1, self._steps)
        self._is_within = done < self._steps
        step = self._epoch * self._steps + done
        if not self._is_checked:
            self._is_checked = True
            self._workers.run(self._state.check)
        pauses, is_due = self._agree(self._is_within and self._is_due(self._step, step))
        if self._is_ended or not self._is_within:
            # Validation and `on_epoch_end` follow.
            return
        self._step = step
        self.is_paused = self._fit.model.stop_training = pauses
        if pauses or is_due:
            self._save(self._epoch, done)

    def on_test_begin(self, logs: Logs = None) -> None:
        if not self._is_tested:
            self._is_tested = True
            self._begin_traced("on_test_batch_end")

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if self._pauses_within():
            # The state was saved after the batch. No other callback handles the end of a part of an epoch.
            return
        before, self._step = self._step, (epoch + 1) * self._steps
        pauses, is_due = self._agree(self._is_due(before, self._step, epoch + 1))
        is_last = self._is_ended or epoch + 1 >= self._fit.epochs
        self.is_paused = pauses and not is_last
        self._fit.model.stop_training = self._is_ended or pauses
        if is_last or pauses or is_due:
            self._save(epoch + 1, 0)

    def on_train_end(self, logs: Logs = None) -> None:
        self._workers.run(self._store.wait)
        self._store.prune()
        self._state.source.close()
        if not self._pauses_within():
            self._state.mark_unfinished(False)

    def _save(self, epoch, batch):
        state: Saved = {}
        is_one = len(self._workers.names) == 1

        def collect():
            # Only one copy of the state exists at a time.
            self._store.wait()
            # On JAX this assigns the current values to the variables.
            _ = self.model
            state.update(self._state.collect(epoch, batch, self._is_ended))
            return {} if is_one else self._state.compute_checksums(state)

        # All workers have written the previous checkpoint before one of them removes an older one.
        checksums = self._workers.run(collect)
        if not is_one:
            state = self._state.select_own(state, checksums)
        self._store.save(self._step, Snapshot(state).write)
        self._saved_at = time.monotonic()

    def _agree(self, is_due):
        """End the run on all workers if the script has set `stop_training` on one.

        Return True if all are to pause, and True if a checkpoint is due on the chief, whose clock differs.
        """
        is_ended, pauses, is_due = self._workers.any(
            bool(self._fit.model.stop_training), self.pause_requested, is_due and not self._workers.index
        )
        self._is_ended |= is_ended
        self._fit.model.stop_training = self._is_ended
        return pauses and not self._is_ended, is_due

    def _is_due(self, before, step, epochs=None):
        """Return True if a checkpoint is due in (before, step], where `epochs` have ended, or None within an epoch."""
        number, unit = self.interval
        if unit == "epoch":
            return epochs is not None and epochs % number == 0
        if unit == "step":
            return step // number > before // number
        return time.monotonic() - self._saved_at >= number * SECONDS[unit]

    def _pauses_within(self):
        """Return True if training stops within an epoch, at which it continues when started again."""
        return self.is_paused and self._is_within


@contextlib.contextmanager
def _pausing_on(numbers: Sequence[signal.Signals], pause: Callable[[], object]) -> Iterator[None]:
    """Call a function for the first of several signals in the context. A second one has its usual effect."""
    if numbers and threading.current_thread() is not threading.main_thread():
        raise ValueError(
            f"Argument `pause_on` of ExactResume requires `fit` in the main thread. Received: pause_on={list(numbers)} "
            f"in another thread. Call `pause()` from a handler of your own."
        )
    # None stands for a handler that was not installed by Python.
    previous = {number: signal.getsignal(number) or signal.SIG_DFL for number in numbers}

    def handle(number, frame):
        signal.signal(number, previous[number])
        pause()

    for number in numbers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)
