"""Position of a `fit` for `ExactResume`: when a checkpoint is saved, and where training resumes."""

import contextlib
import time
import warnings
from typing import Any

import keras

from idmatters_tf._keras_internals import RunningFit
from idmatters_tf._keras_types import Logs
from idmatters_tf._presentation.progress import Progress
from idmatters_tf.callbacks._encoding import Saved, Snapshot
from idmatters_tf.callbacks._run_state import Resume, RunState
from idmatters_tf.callbacks._stores import Store
from idmatters_tf.callbacks._workers import Workers
from idmatters_tf.distribute.tasks import check_equal

SECONDS = {"second": 1, "hour": 3600, "minute": 60}


class StateCallback(keras.callbacks.Callback):
    """Callback that restores and saves the state after all other callbacks have handled an event."""

    def __init__(self, resume: Resume, fit: RunningFit, model: keras.Model, workers: Workers):
        super().__init__()
        # Unlike `model`, this attribute does not make JAX's trainer copy its values into the variables.
        self._model = model
        self._resume = resume
        self._fit = fit
        self._workers = workers
        self._state = RunState(resume, fit, model, workers)
        self._steps = self._state.source.steps_per_epoch
        self._store: Any = None
        # Checkpoint to resume from, until training has resumed.
        self._pending: Saved | None = None
        self._epoch = self._step = 0
        self._saved_at = time.monotonic()
        # True if the last batch was not that of its epoch, and True if the script has ended the run by `stop_training`.
        self._is_within = self._is_ended = self._is_checked = False
        # True after the first validation has begun, and True after the last batch of an epoch has.
        self._is_tested = self._has_ended = False

    def on_train_begin(self, logs: Logs = None) -> None:
        self._state.build()
        self._resume.resumed_at = 0
        self._step = self._fit.initial_epoch * self._steps
        with self._closing_on_error():
            check_equal(self._workers.names, self._workers.run(self._prepare))
            self._pending = self._state.load()
            if self._pending is not None:
                self._resume_from(self._pending)
        self._state.mark_unfinished()
        self._fit.skip_ends_of_epochs(self._model, self._is_paused, self)
        self._saved_at = time.monotonic()

    def _prepare(self):
        """Describe the training run and lock the folder."""
        described = self._state.describe([each for each in self._fit.callbacks if each not in (self, self._resume)])
        folder = self._workers.folder(self._resume.folder)
        self._store = Store(folder, self._resume.keep, prunes=len(self._workers.names) == 1)
        return described

    @contextlib.contextmanager
    def _closing_on_error(self):
        """Close the store if the block raises."""
        try:
            yield
        except BaseException:
            if self._store is not None:
                self._store.close()
            raise

    def _resume_from(self, saved):
        """Restore a checkpoint and continue `fit` there."""
        # A run that the script has stopped does not continue.
        epoch = max(saved["epoch"], self._fit.epochs) if saved["ended"] else saved["epoch"]
        self._resume.resumed_at = self._step = saved["epoch"] * self._steps + saved["batch"]
        if epoch >= self._fit.epochs:
            reason = "a callback stopped it" if saved["ended"] else f"`fit` was called with epochs={self._fit.epochs}"
            warnings.warn(
                f"The run in {self._resume.name} is finished and was not trained further: it ended in epoch "
                f"{saved['epoch']}, and {reason}. Pass another folder to ExactResume for a new run, in "
                f'a loop f"runs/seed-{{seed}}".',
                stacklevel=2,
            )
        else:
            with Progress(None, "resume", bool((self.params or {}).get("verbose"))) as progress:
                progress.say(f"Resuming from step {self._step} of {self._resume.name}")
        self._state.resume(saved)
        self._fit.start_at_epoch(self._model, epoch)

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
            with self._closing_on_error():
                self._workers.run(self._state.check)
        pauses, is_due = self._agree(self._is_within and self._is_due(self._step, step))
        if self._is_ended or not self._is_within:
            # Validation and `on_epoch_end` follow.
            return
        self._step = step
        self._resume.is_paused = self._model.stop_training = pauses
        if pauses or is_due:
            self._save(self._epoch, done)

    def on_test_begin(self, logs: Logs = None) -> None:
        if not self._is_tested:
            self._is_tested = True
            self._begin_traced("on_test_batch_end")

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if self._is_paused():
            # The state was saved after the batch. No other callback handles the end of a part of an epoch.
            return
        before, self._step = self._step, (epoch + 1) * self._steps
        pauses, is_due = self._agree(self._is_due(before, self._step, epoch + 1))
        is_last = self._is_ended or epoch + 1 >= self._fit.epochs
        self._resume.is_paused = pauses and not is_last
        self._model.stop_training = self._is_ended or pauses
        if is_last or pauses or is_due:
            self._save(epoch + 1, 0)

    def on_train_end(self, logs: Logs = None) -> None:
        with self._closing_on_error():
            self._workers.run(self._store.wait)
        self._store.prune()
        self._state.source.close()
        self._fit.end(self._model)
        self._resume.release_signals()
        if not self._is_paused():
            self._state.mark_unfinished(False)
        self._store.close()

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

        with self._closing_on_error():
            checksums = self._workers.run(collect)
            if not is_one:
                # All workers have written the previous checkpoint.
                self._store.prune()
                state = self._state.select_own(state, checksums)
            self._store.save(self._step, Snapshot(state).write)
        self._saved_at = time.monotonic()

    def _agree(self, is_due):
        """End the run on all workers if the script has set `stop_training` on one.

        Return True if all are to pause, and True if a checkpoint is due on the chief, whose clock differs.
        """
        is_ended, pauses, is_due = self._workers.any(
            bool(self._model.stop_training), self._resume.pause_requested, is_due and not self._workers.index
        )
        self._is_ended |= is_ended
        self._model.stop_training = self._is_ended
        return pauses and not self._is_ended, is_due

    def _is_due(self, before, step, epochs=None):
        """Return True if a checkpoint is due in (before, step], where `epochs` have ended, or None within an epoch."""
        number, unit = self._resume.interval
        if unit == "epoch":
            return epochs is not None and epochs % number == 0
        if unit == "step":
            return step // number > before // number
        return time.monotonic() - self._saved_at >= number * SECONDS[unit]

    def _is_paused(self):
        """Return True if training stops within an epoch, at which it continues when started again."""
        return self._resume.is_paused and self._is_within
