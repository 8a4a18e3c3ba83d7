"""Records, evaluations, checkpoints and resumption of a run, for all kinds of updates."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from idmatters_tf._progress import Progress
from idmatters_tf.checkpointing import describe_newest
from idmatters_tf.data.protocols import EvaluationBatchSource
from trainers.cli.arguments import RunError
from trainers.cluster.tasks import Cluster
from trainers.run.events import Events
from trainers.run.folder import Run
from trainers.run.signals import SignalHandler
from trainers.training.checkpoints import Checkpoints
from trainers.training.learner import Learner
from trainers.training.settings import Intervals

# Called after each step with the number of the step and the seconds since the run began.
Callback = Callable[[int, float], object]


class Trainer(Protocol):
    """`SynchronousTrainer` or `AsynchronousTrainer`."""

    learner: Learner

    def evaluate(
        self, batches: EvaluationBatchSource, progress: bool = True, *, between: Callable[[], object] = ...
    ) -> dict[str, float]: ...


class _Interrupted(Exception):
    """Signal received during an evaluation."""


class Session:
    """Part of a run from the newest checkpoint to the end or to a signal.

    Args:
        run: a `trainers.run.folder.Run` that has been started.
        trainer: makes the updates, and calls the methods of the session between them.
        test: test images.
        events: a `trainers.run.events.Events`.
        steps: number of updates of the whole run.
        intervals: intervals of records, evaluations and checkpoints.
        cluster: tasks that train together, see `trainers.cluster.tasks`.
        identity: identity of the run, see `trainers.training.program.Program.identity`. It is recorded in checkpoints,
            and checkpoints of other runs are rejected.
    """

    def __init__(
        self,
        run: Run,
        trainer: Trainer,
        test: EvaluationBatchSource,
        events: Events,
        steps: int,
        intervals: Intervals,
        cluster: Cluster | None = None,
        identity: Mapping[str, Any] | None = None,
    ):
        self.run, self.trainer, self.test, self.events = run, trainer, test, events
        self.steps, self.intervals, self.cluster = steps, intervals, cluster or Cluster()
        learner = trainer.learner
        self.checkpoints = Checkpoints(
            run.checkpoints_path,
            model=learner.model,
            identity=identity,
            optimizer=learner.optimizer,
            step=learner.step,
        )
        self.progress = Progress(steps, "training", progress=False)
        self._pending: list[tf.Tensor] = []
        self._window_seconds = self._seconds_before = 0.0
        self._began = time.monotonic()

    def resume(self) -> int:
        """Restore the newest intact checkpoint and its metrics. Returns its step, 0 for a new run."""
        step = (self.checkpoints.restore() or 0) if self.run.writes else None
        step = self.cluster.gather(step)[0]
        if step and not self.run.writes:
            self.checkpoints.restore_step(step)
        records = self.checkpoints.records(step) if step else []
        self.run.restore_metrics(records)
        self._seconds_before = max((record.get("seconds", 0.0) for record in records), default=0.0)
        return step

    def begin(self) -> int:
        """Start the clock and the progress bar. Returns the number of updates made so far."""
        done = int(self.trainer.learner.step.numpy())
        self._began = time.monotonic()
        self.progress = Progress(self.steps, "training", self.run.writes, done=done, delay=0, leave=True)
        return done

    def seconds(self) -> float:
        """Return the training time of the run in seconds, including earlier sessions."""
        return round(self._seconds_before + time.monotonic() - self._began, 3)

    def add(self, result: tf.Tensor) -> None:
        """Add the result of an update. It is read only when it is logged, so that the devices need not wait."""
        self._pending.append(result)
        self.progress.advance(text=None)

    def spent(self, seconds: float) -> None:
        """Add the time of updates to the current window, for the images per second."""
        self._window_seconds += seconds

    def log(self, step: int) -> None:
        """Record the mean of the updates since the last record.

        Raises:
            RunError: a loss or gradient was not finite.
        """
        if not self._pending:
            return
        before = time.monotonic()
        values = np.stack([np.asarray(result) for result in self._pending]).astype(float)
        seconds = self._window_seconds + time.monotonic() - before
        bad = ~np.isfinite(values[:, :4]).all(axis=1)
        if bad.any():
            self._diverged(step - len(values) + 1 + int(np.argmax(bad)))
        loss, penalty, error, norm = values[:, :4].mean(axis=0)
        images_per_second = len(values) * self.trainer.learner.recipe.batch_size / max(seconds, 1e-9)
        record = {"loss": loss, "penalty": penalty, "error": error, "gradient_norm": norm}
        record |= {"learning_rate": values[-1, 4], "images_per_second": images_per_second}
        self.run.record(kind="train", step=step, seconds=self.seconds(), **record)
        self.events.record(step, "train", record)
        self.progress.advance(0, f"loss {loss:.4f} error {100 * error:.1f} % {images_per_second:.0f} images/s")
        self._pending, self._window_seconds = [], 0.0

    def evaluation_is_due(self, step: int) -> bool:
        """Return True if an evaluation at `step` is missing: at the start, or after an interruption."""
        due = step in (0, self.steps) or step % self.intervals.evaluate_every == 0
        return due and all((record["kind"], record["step"]) != ("test", step) for record in self.run.records)

    def evaluate(self, step: int, handler: SignalHandler | None = None) -> bool:
        """Evaluate the network on the test images, and record the result and the norms of the blocks.

        The weights with the lowest error so far are kept.

        Args:
            step: number of updates made.
            handler: a signal that it receives ends the evaluation, except in a cluster, where tasks wait for one
                another.

        Returns:
            True if the evaluation was completed.
        """

        def between():
            if handler is not None and handler.received is not None and not self.cluster.is_synchronous:
                raise _Interrupted

        model = self.trainer.learner.model
        try:
            measured = self.trainer.evaluate(self.test, progress=self.run.writes, between=between)
        except _Interrupted:
            return False
        norms = self.events.norms(model)
        before = [record["error"] for record in self.run.records if record["kind"] == "test" and record["step"]]
        self.run.record(kind="test", step=step, seconds=self.seconds(), **measured, norms=norms)
        self.events.record(step, "test", measured)
        self.events.write_norms(step, norms)
        if step and self.run.writes and measured["error"] < min(before, default=math.inf):
            self.checkpoints.save_best(step)
        self.progress.say(f"step {step}: test error {100 * measured['error']:.2f} %, test loss {measured['loss']:.4f}")
        return True

    def save(self, step: int) -> None:
        """Save a checkpoint. In a synchronous cluster, all tasks first compare their weights."""
        if self.cluster.is_synchronous:
            self.cluster.agree({f"the checksum of the weights at step {step}": self.trainer.learner.digest()}, RunError)
        if self.run.writes:
            self.run.sync_metrics()
            with self.trainer.learner.first_rate():
                self.checkpoints.save(step, self.run.records)

    def _diverged(self, step):
        self.run.record(kind="diverged", step=step, seconds=self.seconds())
        clip = self.trainer.learner.recipe.clip_norm
        remedy = "--clip-norm 1 or a lower --learning-rate" if clip is None or clip > 1 else "a lower --learning-rate"
        raise RunError(
            f"training has diverged: the loss or its gradient is no longer finite at step {step}.",
            f"{describe_newest(self.checkpoints.folder)} Start again with {remedy}, and another --out.",
        )
