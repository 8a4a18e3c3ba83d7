"""Base class of the monitors: the times of the measurements and the destinations of the numbers."""

import contextlib
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import positive_integer

Measured = TypeVar("Measured")


class Monitor(keras.callbacks.Callback, Generic[Measured]):
    """Measures the model every so many epochs or steps of `fit`, and before the first one.

    A sub-class defines the measurement, and the numbers and images of it that are shown. A training loop without `fit`
    calls `set_model(model)` and `on_train_begin()` once, and then `record(number)`.

    Args:
        every: epochs or steps between measurements.
        log_dir: of TensorBoard's files (written by TensorFlow); none are written if None.
        unit: "epoch" or "step". Steps are counted from the beginning of `fit`, or of the run under `ExactResume`.

    Attributes:
        measurements: by the number of epochs or steps done.
    """

    # Of the names in `logs`, and by default of TensorBoard's tags.
    prefix: ClassVar[str]

    def __init__(self, every: int = 1, log_dir: Any = None, unit: Literal["epoch", "step"] = "epoch"):
        super().__init__()
        if unit not in ("epoch", "step"):
            raise ValueError(f"Argument `unit` must be 'epoch' or 'step'. Received: unit={unit!r}")
        self._every, self.unit = positive_integer("every", every), unit
        # Keras then calls `on_train_batch_end` in a thread of its own, in which no measurement may be made.
        self.async_safe = unit == "epoch"
        self._writer: Any = None
        if log_dir is not None:
            import tensorflow as tf

            self._writer = tf.summary.create_file_writer(str(log_dir))
        self._begins = False
        # Steps done, and those before the current epoch.
        self._step = self._steps_before = 0
        # In `measurements`.
        self._newest: int | None = None
        self.measurements: dict[int, Measured] = {}

    def prepare(self) -> None:
        """Called once at the beginning of `fit`, inside the scope of the model's distribution strategy."""

    def measure(self) -> Measured:
        """Measures the model as it is now."""
        raise NotImplementedError

    def logged(self, measured: Measured) -> Mapping[str, float]:
        """The numbers that go into `logs`, and so into the history and to other callbacks, without the prefix."""
        raise NotImplementedError

    def scalars(self, measured: Measured) -> dict[str, float]:
        """TensorBoard's scalars by tag; those of `logged` unless a sub-class has more."""
        return {f"{self.prefix}/{name}": value for name, value in self.logged(measured).items()}

    def images(self, measured: Measured, number: int) -> dict[str, NDArray[np.uint8]]:
        """TensorBoard's images by tag, (rows, columns, 4) each; none unless a sub-class has some."""
        del measured, number
        return {}

    def on_train_begin(self, logs: Any = None) -> None:
        strategy = getattr(self.model, "distribute_strategy", None)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            self.prepare()
        self._begins = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        # Not when training begins: only an epoch knows `initial_epoch`.
        if self._begins:
            self._begins = False
            self.record(epoch if self.unit == "epoch" else self._step)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # With several steps per execution not every step is seen, and the last may be beyond the epoch.
        done = min(batch + 1, (self.params or {}).get("steps") or batch + 1)
        before, self._step = self._step, self._steps_before + done
        if self.unit == "step" and self._step // self._every > before // self._every:
            self.record(self._step)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.unit == "epoch" and (epoch + 1) % self._every == 0:
            self.record(epoch + 1)
        # The newest measurement goes into `logs` if it was made in this epoch.
        done, before = (epoch + 1, epoch) if self.unit == "epoch" else (self._step, self._steps_before)
        if logs is not None and self._newest is not None and before < self._newest <= done:
            numbers = self.logged(self.measurements[self._newest])
            logs |= {f"{self.prefix}_{name}": value for name, value in numbers.items()}
        self._steps_before = self._step

    def get_state(self) -> dict[str, Any]:
        """What `ExactResume` saves."""
        steps = {"step": self._step, "steps_before": self._steps_before, "newest": self._newest}
        return {"measurements": self.measurements, "begins": self._begins, **steps}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on behind the measurements of another process: what it measured is not measured again."""
        self.measurements, self._begins = state["measurements"], state["begins"]
        # Earlier versions saved no more.
        self._step, self._steps_before = state.get("step", 0), state.get("steps_before", 0)
        self._newest = state.get("newest", max(self.measurements, default=None))

    def record(self, number: int) -> Measured:
        """Measure the model, keep the result in `measurements` and write it to TensorBoard's files.

        Args:
            number: epochs or steps done.
        """
        measured = self.measurements[number] = self.measure()
        self._newest = number
        if self._writer is not None:
            write_summary(self._writer, number, self.scalars(measured), self.images(measured, number))
        return measured


def write_summary(
    writer: Any, step: int, scalars: Mapping[str, float], images: Mapping[str, NDArray[np.uint8]] | None = None
) -> None:
    """Writes scalars and images to TensorBoard's files.

    Args:
        writer: of `tf.summary`.
        step: of training.
        scalars: by tag.
        images: by tag, uint8, (rows, columns, channels).
    """
    import tensorflow as tf

    with writer.as_default(step=step):
        for tag, value in scalars.items():
            tf.summary.scalar(tag, value)
        for tag, image in (images or {}).items():
            tf.summary.image(tag, image[None])
    writer.flush()
