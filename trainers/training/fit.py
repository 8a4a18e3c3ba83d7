"""Synchronous training of a task by Keras' `fit`, on one device, several devices or several machines."""

import functools
import json
import math
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

import keras

from idmatters_tf.callbacks import ExactResume
from idmatters_tf.callbacks.saved import Checkpoint
from idmatters_tf.distribute import ClusterDescription
from trainers.cli.arguments import UsageError
from trainers.cli.startup import print_message
from trainers.run.signals import SignalHandler
from trainers.training.build import make_train_batches, with_image_size
from trainers.training.checkpoints import KEPT, explain_write_errors, pack
from trainers.training.measure import measure
from trainers.training.reports import Reports
from trainers.training.task import Task

# Attributes of `Training` with the updates since the last record.
_WINDOW = ("_sums", "_logs", "_updates", "_since_reset", "_seconds")


def fit(
    task: Task, model: keras.Model, cluster: ClusterDescription | None, checkpoint: Checkpoint | None
) -> signal.Signals | None:
    """Train to the end of a run. Returns None, or the signal that stopped it after a checkpoint was saved.

    Args:
        task: training task.
        model: compiled network, with the weights of the checkpoint.
        cluster: tasks that train together; None for a single process.
        checkpoint: newest checkpoint; None for a new run.
    """
    run = task.run
    recipe = task.settings.recipe
    intervals = task.settings.run
    source = task.source
    done = 0 if checkpoint is None else checkpoint.step
    test = functools.partial(measure, model, source.test_batches(), source.test_images, run.writes)
    network = with_image_size(model, *task.data.image_shape[:2]) if recipe.train_sizes else model
    reports = Reports(task, network, test, checkpoint)
    after = None
    if intervals.curvature_every is not None:
        from trainers.training.curvature import curvature_callback

        after = curvature_callback(task, model, intervals.curvature_every)
    with SignalHandler() as handler, reports.progress:
        training = Training(reports, handler, after, cluster is not None)
        if reports.evaluation_is_due(done) and not reports.evaluate(done, training.is_interrupted):
            return handler.received
        if done >= recipe.steps:
            return None
        if run.writes:
            print_message("compiling the training step ...")
        resume = ExactResume(run.checkpoints_path, intervals.checkpoint_every, KEPT)
        batches = make_train_batches(task)
        silent: Any = 0  # Keras annotates `verbose` as a string
        steps = batches.steps_per_epoch
        epochs = -(-recipe.steps // steps)
        callbacks = DeviceLogs([training, resume], add_history=True, model=model, epochs=epochs, steps=steps, verbose=0)
        with warnings.catch_warnings(), explain_write_errors(run.checkpoints_path):
            # The program has compared the versions, threads and devices.
            warnings.filterwarnings("ignore", message=".*results will differ by rounding", category=UserWarning)
            try:
                model.fit(batches, epochs=epochs, shuffle=False, verbose=silent, callbacks=callbacks)
            except ValueError as error:
                if checkpoint is None or str(checkpoint.path.resolve()) not in str(error):
                    raise
                raise UsageError(str(error)) from error
            finally:
                resume.close()
        return None if training.is_complete else handler.received or signal.SIGTERM


class DeviceLogs(keras.callbacks.CallbackList):
    """Callbacks whose logs of a training step are arrays of the backend.

    Keras' list converts them to numbers after each step. On JAX this waits for the device, which is then idle until the
    next step begins.
    """

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs=logs)


class Training(keras.callbacks.Callback):
    """Callback that calls `reports` after each step and stops `fit` after the last step or a signal of the handler.

    It calls `after` after each step with its number and the seconds of the run. With `in_cluster`, other tasks wait for
    this one in evaluations, which signals therefore do not end.

    Attributes:
        is_complete: True after the last step and its evaluation.
    """

    def __init__(
        self, reports: Reports, handler: SignalHandler, after: Callable[[int, float], object] | None, in_cluster: bool
    ):
        super().__init__()
        self._reports, self._handler, self._after, self._in_cluster = reports, handler, after, in_cluster
        self._model: Any = None
        self.is_complete = False
        # Steps before this epoch; sums of the means, number of updates and seconds since the last record.
        self._before = self._updates = self._since_reset = 0
        self._sums: dict[str, float] = {}
        self._logs: dict[str, Any] = {}
        self._seconds = 0.0
        # Time at which the updates began that are not in `_seconds`; None outside of updates.
        self._started: float | None = None
        self._penalty: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._penalty = _compile_penalty(self._model)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._before, self._since_reset = epoch * (self.params or {})["steps"], 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._started is None:
            self._started = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._since_reset += 1
        self._logs = logs or {}
        step = self._before + batch + 1
        settings = self._reports.task.settings
        intervals = settings.run
        self._reports.progress.advance(text=None)
        # Read once: a signal received later stops the next step.
        stops, ends = self._handler.received is not None, step == settings.recipe.steps
        evaluates = step % intervals.evaluate_every == 0 or ends
        saves = step % intervals.checkpoint_every == 0 or ends
        # Before an evaluation, so that a diverged network is not evaluated and its weights are not kept.
        if step % intervals.log_every == 0 or evaluates or saves:
            self._log(step)
        elif stops or self._after is not None:
            self._wait()
            if not math.isfinite(self._logs["loss"]):
                self._reports.diverged(step)
        # An interrupted evaluation is repeated when the run is resumed.
        if evaluates:
            is_evaluated = self._reports.evaluate(step, self.is_interrupted)
            self.is_complete = is_evaluated and ends
            stops = stops or not is_evaluated
            self._model.reset_metrics()
        if self._after is not None:
            self._after(step, self._reports.seconds())
        if stops or ends:
            self._model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # Keras resets the metrics at the beginning of an epoch.
        self._add()

    def get_state(self) -> str:
        """Return the state that `ExactResume` saves."""
        window = {name: getattr(self, name) for name in _WINDOW}
        return pack(self._reports.task, window)

    def set_state(self, state: str) -> None:
        """Restore the updates since the last record. The records are read before `fit`."""
        for name, value in json.loads(state)["window"].items():
            setattr(self, name, value)

    def is_interrupted(self) -> bool:
        """Return True if a signal ends an evaluation."""
        return not self._in_cluster and self._handler.received is not None

    def _wait(self):
        """Wait for the results of the updates, and add their time."""
        self._logs = {name: float(value) for name, value in self._logs.items()}
        if self._started is not None:
            self._seconds += time.monotonic() - self._started
            self._started = None

    def _add(self):
        """Add the means since the last reset of the metrics to the sums."""
        self._wait()
        for name in ("cross_entropy", "error") if self._since_reset else ():
            self._sums[name] = self._sums.get(name, 0.0) + self._since_reset * self._logs[name]
        self._updates, self._since_reset = self._updates + self._since_reset, 0

    def _log(self, step):
        self._add()
        model: Any = self.model  # on JAX this assigns the current values to the variables
        as_number: Any = keras.ops.convert_to_numpy
        norms = model.optimizer.norms
        means = {
            "loss": self._sums["cross_entropy"] / self._updates,
            "penalty": float(as_number(self._penalty())),
            "error": self._sums["error"] / self._updates,
            "gradient_norm": float(as_number(norms)) / self._updates,
            "learning_rate": float(as_number(model.optimizer.schedule(step - 1))),
        }
        self._reports.log(step, means, self._updates, self._seconds)
        norms.assign(0.0)
        model.reset_metrics()
        self._sums, self._updates, self._seconds = {}, 0, 0.0


def _compile_penalty(model):
    """Return a function that computes the weight penalty."""

    def penalty():
        losses = model.losses
        return sum(losses[1:], losses[0]) if losses else 0.0

    if keras.backend.backend() != "tensorflow":
        return penalty
    import tensorflow as tf

    return tf.function(penalty, autograph=False)
