"""Base class of callbacks that measure a model: schedule of the measurements and output of the numbers."""

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import interval
from idmatters_tf._imports import require
from idmatters_tf._keras_types import Logs
from idmatters_tf._presentation.results import Drawing, Figure

if TYPE_CHECKING:
    import tensorflow as tf
    from _typeshed import DataclassInstance

Measured = TypeVar("Measured", bound="DataclassInstance")


class Monitor(keras.callbacks.Callback, Drawing, Generic[Measured]):
    """Periodic measurement of the model in `fit`, and before the first epoch or step.

    `plot(path)` draws the measurements.

    A training loop without `fit` calls `set_model(model)` and `on_train_begin()` once, and then `record(number)`.

    Args:
        every: interval between measurements: a number of training steps, or a text such as "100 steps" or "2 epochs".
        log_dir: folder of TensorBoard's files (written by TensorFlow). If None, none are written.

    Attributes:
        measurements: measurements by the number of completed epochs or steps.
    """

    # Prefix of the names in `logs`, and by default of TensorBoard's tags.
    prefix: ClassVar[str]
    size = (12.0, 8.0)

    def __init__(self, every: int | str = "epoch", log_dir: str | os.PathLike[str] | None = None):
        super().__init__()
        self._every, self.unit = interval(every, "step", ("epoch", "step"), self)
        # If True, Keras calls `on_train_batch_end` in another thread, in which measurements are not possible.
        self.async_safe = self.unit == "epoch"
        self._writer = None if log_dir is None else _make_writer(log_dir)
        self._begins = False
        self._steps_per_execution = 1
        # Number of steps in an epoch, and before the current epoch.
        self._steps = self._before = 0
        # Numbers for the `logs` of this epoch.
        self._numbers: dict[str, float] = {}
        self.measurements: dict[int, Measured] = {}

    def prepare(self) -> None:
        """Prepare the measurements at the beginning of `fit`, inside the scope of the distribution strategy."""

    def measure(self) -> Measured:
        """Measure the current model."""
        raise NotImplementedError

    def _rebuild(self, **fields: Any) -> Measured:
        """Return the measurement, a dataclass, with these fields, in which dataclasses are dicts."""
        raise NotImplementedError

    def logged(self, measured: Measured) -> Mapping[str, float]:
        """Return the numbers for `logs`, and thus for the history and other callbacks, without the prefix."""
        raise NotImplementedError

    def scalars(self, measured: Measured) -> dict[str, float]:
        """Return TensorBoard's scalars by tag, by default the numbers of `logged`."""
        return {f"{self.prefix}/{name}": value for name, value in self.logged(measured).items()}

    def images(self, measured: Measured, number: int) -> dict[str, NDArray[np.uint8]]:
        """Return TensorBoard's images by tag, each of shape (rows, columns, 4), by default none."""
        del measured, number
        return {}

    def on_train_begin(self, logs: Logs = None) -> None:
        strategy = getattr(self.model, "distribute_strategy", None)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            self.prepare()
        self._begins = True
        self._steps_per_execution = getattr(self.model, "steps_per_execution", 1)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._steps = (self.params or {}).get("steps") or 0
        self._before = epoch * self._steps
        if self.unit == "step" and not self._steps:
            raise ValueError("`every` in steps requires data of known length. Pass `steps_per_epoch` to `fit`.")
        # Not in `on_train_begin`, which does not receive `initial_epoch`.
        if self._begins:
            self._begins = False
            self.record(epoch if self.unit == "epoch" else self._before)
            self._numbers = {}

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        if self.unit == "epoch":
            return
        # The last execution may extend beyond the epoch.
        done = self._before + min(batch + 1, self._steps)
        last = self._before + batch + 1 - self._steps_per_execution
        if done // self._every > last // self._every:
            self.record(done)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if self.unit == "epoch" and (epoch + 1) % self._every == 0:
            self.record(epoch + 1)
        if logs is not None:
            logs |= {f"{self.prefix}_{name}": value for name, value in self._numbers.items()}
        self._numbers = {}

    def get_state(self) -> dict[str, Any]:
        """Return the state that `ExactResume` saves."""
        fields = {number: dataclasses.asdict(each) for number, each in self.measurements.items()}
        return {"measurements": fields, "begins": self._begins, "numbers": self._numbers}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the measurements of an interrupted process."""
        self.measurements = {number: self._rebuild(**fields) for number, fields in state["measurements"].items()}
        self._begins = state["begins"]
        self._numbers = state["numbers"]

    def draw(self, figure: Figure) -> None:
        """Draw the numbers of `logged` against epochs or steps, each on axes of its own."""
        curves: dict[str, list[tuple[int, float]]] = {}
        for number, measured in sorted(self.measurements.items()):
            for name, value in self.logged(measured).items():
                curves.setdefault(name, []).append((number, value))
        columns = min(4, len(curves)) or 1
        panels = figure.subplots(-(-len(curves) // columns) or 1, columns, squeeze=False).flat
        for (name, points), axes in zip(curves.items(), panels, strict=False):
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3)
            axes.set(title=name, xlabel=self.unit)
            axes.grid(alpha=0.3)
        for axes in panels:
            axes.remove()

    def record(self, number: int) -> Measured:
        """Measure the model, store the result in `measurements` and write it to TensorBoard's files.

        Args:
            number: number of completed epochs or steps.
        """
        measured = self.measure()
        # The newest measurement is the last entry.
        self.measurements.pop(number, None)
        self.measurements[number] = measured
        self._numbers = dict(self.logged(measured))
        if self._writer is not None:
            write_summary(self._writer, number, self.scalars(measured), self.images(measured, number))
        return measured


def _make_writer(log_dir: str | os.PathLike[str]) -> "tf.summary.SummaryWriter":
    require("tensorflow", "tensorboard")
    import tensorflow as tf

    return tf.summary.create_file_writer(str(log_dir))


def write_summary(
    writer: "tf.summary.SummaryWriter",
    step: int,
    scalars: Mapping[str, float],
    images: Mapping[str, NDArray[np.uint8]] | None = None,
) -> None:
    """Write scalars and images, uint8 of shape (rows, columns, channels), by tag with a writer of `tf.summary`."""
    import tensorflow as tf

    with writer.as_default(step=step):
        for tag, value in scalars.items():
            tf.summary.scalar(tag, value)
        for tag, image in (images or {}).items():
            tf.summary.image(tag, image[None])
    writer.flush()
