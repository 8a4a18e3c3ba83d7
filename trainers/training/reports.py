"""Records of a run during training: metrics.jsonl, TensorBoard, progress, best weights, divergence."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras

from idmatters_tf._presentation.progress import Progress
from idmatters_tf.callbacks.saved import Checkpoint
from idmatters_tf.checkpointing import describe_newest
from trainers.cli.arguments import RunError
from trainers.run.events import Events, measure_norms
from trainers.training.checkpoints import save_best, unpack
from trainers.training.task import Task

# Values of a record of training.
MEANS: tuple[str, ...] = ("loss", "penalty", "error", "gradient_norm", "learning_rate")


class Reports:
    """Reports of a run that has been started, or resumed from a checkpoint with its records.

    The network has the size of the test images; its norms and best weights are recorded. `measure(is_interrupted=...)`
    evaluates it, see `trainers.training.measure.measure`.
    """

    def __init__(
        self,
        task: Task,
        network: keras.Model,
        measure: Callable[..., dict[str, Any] | None],
        checkpoint: Checkpoint | None,
    ):
        self.task, self._run, self._network, self._measure = task, task.run, network, measure
        done, records = (0, []) if checkpoint is None else (checkpoint.step, unpack(checkpoint)[1])
        self._events = Events(self._run.path / "events", self._run.writes, records)
        self._before = max((record.get("seconds", 0.0) for record in records), default=0.0)
        self._began = time.monotonic()
        self._run.restore_metrics(records)
        steps = task.settings.recipe.steps
        self.progress = Progress(steps, "training", self._run.writes, done=done, delay=0, leave=True)

    def seconds(self) -> float:
        """Return the training time of the run in seconds, including earlier sessions."""
        return round(self._before + time.monotonic() - self._began, 3)

    def log(self, step: int, means: Mapping[str, float], updates: int, seconds: float) -> None:
        """Record the values of `MEANS` over the last updates, which took this time.

        Raises:
            RunError: a mean is not finite.
        """
        if not all(map(math.isfinite, means.values())):
            self.diverged(step)
        record = {**means, "images_per_second": updates * self.task.settings.recipe.batch_size / max(seconds, 1e-9)}
        self._run.record(kind="train", step=step, seconds=self.seconds(), **record)
        self._events.record(step, "train", record)
        text = (
            f"loss {record['loss']:.4f} error {100 * record['error']:.1f} % {record['images_per_second']:.0f} images/s"
        )
        self.progress.advance(0, text)

    def evaluation_is_due(self, step: int) -> bool:
        """Return True if an evaluation at `step` is missing: at the start, or after an interruption."""
        due = step in (0, self.task.settings.recipe.steps) or step % self.task.settings.run.evaluate_every == 0
        return due and all((record["kind"], record["step"]) != ("test", step) for record in self._run.records)

    def evaluate(self, step: int, is_interrupted: Callable[[], bool] = lambda: False) -> bool:
        """Evaluate the network, and record the result and the norms of the blocks. Returns False if interrupted.

        The weights with the lowest error so far are kept.
        """
        measured = self._measure(is_interrupted=is_interrupted)
        if measured is None:
            return False
        norms = measure_norms(self._network) if self._run.writes else None
        before = [record["error"] for record in self._run.records if record["kind"] == "test" and record["step"]]
        self._run.record(kind="test", step=step, seconds=self.seconds(), **measured, norms=norms)
        self._events.record(step, "test", measured, norms)
        if step and self._run.writes and measured["error"] < min(before, default=math.inf):
            save_best(self.task, step, self._network)
        self.progress.say(f"step {step}: test error {100 * measured['error']:.2f} %, test loss {measured['loss']:.4f}")
        return True

    def diverged(self, step: int) -> None:
        """Raise RunError for a loss or gradient that is not finite."""
        self._run.record(kind="diverged", step=step, seconds=self.seconds())
        clip = self.task.settings.recipe.clip_norm
        remedy = "--clip-norm 1 or a lower --learning-rate" if clip is None or clip > 1 else "a lower --learning-rate"
        raise RunError(
            f"training has diverged: the loss or its gradient is no longer finite at step {step}.",
            f"{describe_newest(self._run.checkpoints_path)} Start again with {remedy}, and another --out.",
        )
