"""Records of a run during training: metrics.jsonl, TensorBoard, progress, best weights, divergence."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras

from idmatters_tf._progress import Progress
from idmatters_tf.callbacks.saved import Checkpoint
from idmatters_tf.checkpointing import describe_newest
from trainers.cli.arguments import RunError
from trainers.run.events import Events
from trainers.run.folder import Run
from trainers.training.checkpoints import save_best, unpack
from trainers.training.settings import Settings

# Values of a record of training.
MEANS: tuple[str, ...] = ("loss", "penalty", "error", "gradient_norm", "learning_rate")


class Reports:
    """Reports of a run.

    Args:
        run: folder of the run, which has been started.
        settings: settings of the run.
        network: network for images of one size, for its norms and best weights.
        measure: evaluates the network, see `trainers.training.measure.measure`, with the argument `is_interrupted`.
        identity: identity of the run, for the best weights.
        checkpoint: newest checkpoint, with the records of the run so far; None for a new run.
    """

    def __init__(
        self,
        run: Run,
        settings: Settings,
        network: keras.Model,
        measure: Callable[..., dict[str, Any] | None],
        identity: Mapping[str, Any] | None,
        checkpoint: Checkpoint | None,
    ):
        self.run, self.settings, self.identity = run, settings, identity
        done, records = 0, []
        if checkpoint is not None:
            done, records = checkpoint.step, unpack(checkpoint)[1]
        self._network, self._measure = network, measure
        self._events = Events(run.path / "events", run.writes, records)
        self._before = max((record.get("seconds", 0.0) for record in records), default=0.0)
        self._began = time.monotonic()
        run.restore_metrics(records)
        self.progress = Progress(settings.recipe.steps, "training", run.writes, done=done, delay=0, leave=True)

    def seconds(self) -> float:
        """Return the training time of the run in seconds, including earlier sessions."""
        return round(self._before + time.monotonic() - self._began, 3)

    def log(self, step: int, means: Mapping[str, float], updates: int, seconds: float) -> None:
        """Record the means of the last updates.

        Args:
            step: number of updates made so far.
            means: values of `MEANS`.
            updates: number of these updates.
            seconds: their time.

        Raises:
            RunError: a mean is not finite.
        """
        if not all(map(math.isfinite, means.values())):
            self.diverged(step)
        record = {**means, "images_per_second": updates * self.settings.recipe.batch_size / max(seconds, 1e-9)}
        self.run.record(kind="train", step=step, seconds=self.seconds(), **record)
        self._events.record(step, "train", record)
        text = (
            f"loss {record['loss']:.4f} error {100 * record['error']:.1f} % {record['images_per_second']:.0f} images/s"
        )
        self.progress.advance(0, text)

    def evaluation_is_due(self, step: int) -> bool:
        """Return True if an evaluation at `step` is missing: at the start, or after an interruption."""
        due = step in (0, self.settings.recipe.steps) or step % self.settings.run.evaluate_every == 0
        return due and all((record["kind"], record["step"]) != ("test", step) for record in self.run.records)

    def evaluate(self, step: int, is_interrupted: Callable[[], bool] = lambda: False) -> bool:
        """Evaluate the network on the test images, and record the result and the norms of the blocks.

        The weights with the lowest error so far are kept.

        Args:
            step: number of updates made.
            is_interrupted: see `trainers.training.measure.measure`.

        Returns:
            True if the evaluation was completed.
        """
        measured = self._measure(is_interrupted=is_interrupted)
        if measured is None:
            return False
        norms = self._events.norms(self._network)
        before = [record["error"] for record in self.run.records if record["kind"] == "test" and record["step"]]
        self.run.record(kind="test", step=step, seconds=self.seconds(), **measured, norms=norms)
        self._events.record(step, "test", measured)
        self._events.write_norms(step, norms)
        if step and self.run.writes and measured["error"] < min(before, default=math.inf):
            save_best(self.run.checkpoints_path, step, self._network, self.identity)
        self.progress.say(f"step {step}: test error {100 * measured['error']:.2f} %, test loss {measured['loss']:.4f}")
        return True

    def diverged(self, step: int) -> None:
        """Raise RunError for a loss or gradient that is not finite."""
        self.run.record(kind="diverged", step=step, seconds=self.seconds())
        clip = self.settings.recipe.clip_norm
        remedy = "--clip-norm 1 or a lower --learning-rate" if clip is None or clip > 1 else "a lower --learning-rate"
        raise RunError(
            f"training has diverged: the loss or its gradient is no longer finite at step {step}.",
            f"{describe_newest(self.run.checkpoints_path)} Start again with {remedy}, and another --out.",
        )
