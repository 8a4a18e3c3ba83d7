"""What the monitors have in common: when they measure, and where the numbers go."""

import contextlib
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import positive_integer

Measured = TypeVar("Measured")


class Monitor(keras.callbacks.Callback, Generic[Measured]):
    """Measures the model every so many epochs of `fit`, and before the first one.

    A sub-class says what is measured and which numbers and images of it are shown.

    Args:
        every: epochs between measurements.
        log_dir: of TensorBoard's files (written by TensorFlow); none are written if None.

    Attributes:
        measurements: what was measured, by the number of epochs done.
    """

    # Of the names in `logs`, and by default of TensorBoard's tags.
    prefix: ClassVar[str]

    def __init__(self, every: int = 1, log_dir: Any = None):
        super().__init__()
        self._every = positive_integer("every", every)
        self._writer: Any = None
        if log_dir is not None:
            import tensorflow as tf

            self._writer = tf.summary.create_file_writer(str(log_dir))
        self._begins = False
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

    def images(self, measured: Measured, epoch: int) -> dict[str, NDArray[np.uint8]]:
        """TensorBoard's images by tag, (rows, columns, 4) each; none unless a sub-class has some."""
        del measured, epoch
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
            self._measure(epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if (epoch + 1) % self._every == 0:
            measured = self._measure(epoch + 1)
            if logs is not None:
                logs |= {f"{self.prefix}_{name}": value for name, value in self.logged(measured).items()}

    def get_state(self) -> dict[str, Any]:
        """What `ExactResume` saves."""
        return {"measurements": self.measurements, "begins": self._begins}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on behind the measurements of another process: what it measured is not measured again."""
        self.measurements, self._begins = state["measurements"], state["begins"]

    def _measure(self, epoch: int) -> Measured:
        measured = self.measurements[epoch] = self.measure()
        if self._writer is not None:
            write_summary(self._writer, epoch, self.scalars(measured), self.images(measured, epoch))
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
