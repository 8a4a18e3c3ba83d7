"""Reports of a run during training: metrics.jsonl, TensorBoard, progress, divergence."""

import contextlib
import json
import math
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import keras

from idmatters_tf._evaluation.monitor import write_summary
from idmatters_tf._keras_types import Logs, Tensor
from idmatters_tf._presentation.progress import Progress
from idmatters_tf.callbacks import ExactResume
from idmatters_tf.checkpointing import describe_newest
from idmatters_tf.isometry import block_norms
from idmatters_tf.isometry.callbacks import NormsMeasurement
from trainers import preprocessing
from trainers.backends import has_tensorflow
from trainers.cli.arguments import RunError
from trainers.cli.settings import as_dict
from trainers.run.folder import JsonObject
from trainers.run.signals import SignalHandler
from trainers.training.measure import Measured, as_float
from trainers.training.settings import Task

if TYPE_CHECKING:
    import tensorflow as tf

# Values of a record of training.
MEANS: tuple[str, ...] = ("loss", "error", "gradient_norm", "learning_rate")
# Number of checkpoints that are kept.
KEPT = 3
# Tags of the values of a record that are shown.
_TAGS = {
    "loss": "loss",
    "error": "top1_error",
    "top5_error": "top5_error",
    "gradient_norm": "optimization/gradient_norm",
    "learning_rate": "optimization/learning_rate",
    "images_per_second": "speed/images_per_second",
}


class Reports(contextlib.AbstractContextManager["Reports"]):
    """Reports of a run, which begin when its checkpoint has been restored.

    The network has the size of the test images; its norms are recorded. `measure()` evaluates it, see
    `trainers.training.measure.measure`.

    Attributes:
        has_begun: True after `begin`.
        step: number of completed steps at the last report.
    """

    def __init__(self, task: Task, network: keras.Model, measure: Callable[[], Measured]):
        self.task, self._run, self._network, self._measure = task, task.run, network, measure
        self._before, self._began = 0.0, time.monotonic()
        self.has_begun, self.step = False, 0
        self.progress = Progress(None, "training", False)

    def begin(self, step: int, records: Sequence[JsonObject]) -> None:
        """Begin or continue the reports with the step and the records of a checkpoint."""
        self.has_begun, self.step = True, step
        steps = self.task.settings.recipe.steps
        if self._run.writes:
            self._run.update(as_dict(self.task.settings))
            fitted = self.task.settings.data.preprocessing
            if fitted is not None:
                # For exports without the data.
                preprocessing.save(fitted, self.task.data.image_shape, self._run.path)
        self._run.restore_metrics(list(records))
        self._events = Events(self._run.path / "events", self._run.writes)
        self._before = max((record.get("seconds", 0.0) for record in records), default=0.0)
        self.progress = Progress(steps, "training", self._run.writes, done=step, delay=0, leave=True)
        if step:
            self.progress.say(f"resuming from step {step}")

    def __exit__(self, *_: object) -> None:
        self.progress.close()

    def seconds(self) -> float:
        """Return the training time of the run in seconds, including earlier sessions."""
        return round(self._before + time.monotonic() - self._began, 3)

    def log(self, step: int, means: Mapping[str, float], updates: int, seconds: float) -> None:
        """Record the values of `MEANS` over the last updates, which took this time.

        Raises:
            RunError: a mean is not finite.
        """
        self.step = step
        if not all(map(math.isfinite, means.values())):
            self._stop_diverged(step)
        record = {**means, "images_per_second": updates * self.task.settings.recipe.batch_size / max(seconds, 1e-9)}
        self._run.record(kind="train", step=step, seconds=self.seconds(), **record)
        self._events.record(step, "train", record)
        text = (
            f"loss {record['loss']:.4f} error {100 * record['error']:.1f} % {record['images_per_second']:.0f} images/s"
        )
        self.progress.advance(0, text)

    def evaluation_is_due(self, step: int) -> bool:
        """Return True if there is to be an evaluation at a step, and there is none yet."""
        due = step in (0, self.task.settings.recipe.steps) or step % self.task.settings.run.evaluate_every == 0
        return due and all((record["kind"], record["step"]) != ("test", step) for record in self._run.records)

    def evaluate(self, step: int) -> None:
        """Evaluate the network, and record the result and the norms of the blocks."""
        measured = self._measure()
        norms = measure_norms(self._network) if self._run.writes else None
        self._run.record(kind="test", step=step, seconds=self.seconds(), **measured, norms=norms)
        self._events.record(step, "test", measured, norms)
        self.progress.say(f"step {step}: test error {100 * measured['error']:.2f} %, test loss {measured['loss']:.4f}")

    def _stop_diverged(self, step):
        """Raise RunError for a loss or gradient that is not finite."""
        self._run.record(kind="diverged", step=step, seconds=self.seconds())
        clip = self.task.settings.recipe.clip_norm
        remedy = "--clip-norm 1 or a lower --learning-rate" if clip is None or clip > 1 else "a lower --learning-rate"
        raise RunError(
            f"training has diverged: the loss or its gradient is no longer finite at step {step}.",
            f"{describe_newest(self._run.checkpoints_path)} Start again with {remedy}, and another --out.",
        )


class ReportEpochs(keras.callbacks.Callback):
    """Callback that reports each epoch of `fit`, which is the log interval of a run, and stops `fit` after a signal.

    The records are its state for `ExactResume`. `rate` is the learning rate as a function of the step. A signal during
    an evaluation stops `fit` after the next step.
    """

    def __init__(self, reports: Reports, resume: ExactResume, handler: SignalHandler, rate: Callable[[int], Tensor]):
        super().__init__()
        self._reports, self._resume, self._handler, self._rate = reports, resume, handler, rate
        # Records of the checkpoint.
        self._records: list[JsonObject] = []
        # Number of updates of this session in this epoch, and the time at which the first one began.
        self._updates, self._started = 0, 0.0

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        # On JAX, reading `self.model` would copy the state of the trainer.
        self._trained = model

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._updates = 0
        # `ExactResume` is the last callback that handles the beginning of training.
        self._begin()

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        if not self._updates:
            self._started = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._updates += 1
        self._reports.progress.advance(text=None)
        if self._handler.received is not None:
            self._resume.pause()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        seconds = time.monotonic() - self._started
        logs, steps = logs or {}, (self.params or {})["steps"]
        step = (epoch + 1) * steps
        optimizer = self._trained.optimizer
        norm, rate = as_float(optimizer.norms) / steps, as_float(self._rate(step - 1))
        means = dict(zip(MEANS, (logs["cross_entropy"], logs["error"], norm, rate), strict=True))
        optimizer.norms.assign(0.0)
        # Before an evaluation, so that a diverged network is not evaluated.
        self._reports.log(step, means, self._updates, seconds)
        self._evaluate(step)

    def on_train_end(self, logs: Logs = None) -> None:
        # The training was complete, but not all that follows it.
        self._begin()

    def get_state(self) -> str:
        """Return the state that `ExactResume` saves."""
        return json.dumps(self._reports.task.run.records)

    def set_state(self, state: str) -> None:
        """Restore the records."""
        self._records = json.loads(state)

    def _begin(self) -> None:
        """Begin the reports once, and make an evaluation that is missing."""
        if self._reports.has_begun:
            return
        step = self._resume.resumed_at or 0
        self._reports.begin(step, self._records)
        self._evaluate(step)
        if step < self._reports.task.settings.recipe.steps:
            self._reports.progress.say("compiling the training step ...")

    def _evaluate(self, step: int) -> None:
        if not self._reports.evaluation_is_due(step):
            return
        try:
            self._reports.evaluate(step)
        finally:
            # Keras has reset the metrics of an epoch that begins.
            self._trained.reset_metrics()


class DeviceLogs(keras.callbacks.CallbackList):
    """Callbacks whose logs of a training step are arrays of the backend.

    Keras' list converts them to numbers after each step, which waits for the device. In a loop of JAX on an H100, the
    network of Table 1 in batches of 128, this took 13 to 32 % more time per step in float32 and 14 to 26 % in bfloat16,
    with 0 to 2 ms of Python between two steps.
    """

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs=logs)


class Events:
    """Writer of the TensorBoard event files of a run, which requires TensorFlow. Without it nothing is written."""

    def __init__(self, folder: str | os.PathLike[str], writes: bool = True):
        self._folder, self._writes = pathlib.Path(folder), writes and has_tensorflow()
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def record(self, step: int, kind: str, record: Mapping[str, float], blocks: JsonObject | None = None) -> None:
        """Write the numbers of a record of kind "train" or "test", and the result of `measure_norms`."""
        self._write(kind, step, {_TAGS[name]: record[name] for name in record if name in _TAGS})
        if blocks is not None:
            values = {f"norms/{name}": blocks[name] for name in ("mean_frobenius", "largest_spectral")}
            for block, norms in blocks["blocks"].items():
                values |= {f"norms_{name}/{block}": value for name, value in norms.items()}
            self._write("", step, values)

    def _write(self, run: str, step: int, values: Mapping[str, float]) -> None:
        if self._writes:
            import tensorflow as tf

            if run not in self._writers:
                self._writers[run] = tf.summary.create_file_writer(str(self._folder / run))
            write_summary(self._writers[run], step, values)


def measure_norms(model: keras.Model) -> JsonObject | None:
    """Return the norms of all blocks, their mean Frobenius and largest spectral norm, or None without blocks."""
    blocks = block_norms(model)
    return {**NormsMeasurement(blocks, None).summary(), "blocks": blocks} if blocks else None
