"""Claim: training waits for the copy of a checkpoint to memory, not for the write to the disk.

    python benchmarks/checkpoint_stall.py [--rounds N] [--every N] [--batch-size N] [--blocks N] [--widths C ...]
                                          [--folder DIR]

Table 1's network of 13.5 million weights is trained with momentum by Keras' `fit` with `ExactResume`. Checkpoints are
alternately written in the background and waited for at once. The stall is the time that a checkpoint adds between two
training steps. A cycle is a checkpoint and the training steps up to the next one, which share the cores with the write.
"""

import argparse
import contextlib
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from harness import results
from harness.timing import ratio
from idmatters_tf._background import BackgroundWriter
from idmatters_tf.callbacks import ExactResume, FunctionBatches
from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.optimizers import Momentum

BACKGROUND, AT_ONCE = "in the background", "waited for at once"
# Checkpoints of each kind that are not measured: the first one includes a check of the training step.
WARM_UP = 1


class Recorder:
    """Times of checkpoints in seconds: stalls and cycles by kind, and writes."""

    def __init__(self) -> None:
        self.stalls: dict[str, list[float]] = {BACKGROUND: [], AT_ONCE: []}
        self.cycles: dict[str, list[float]] = {BACKGROUND: [], AT_ONCE: []}
        self.writes: list[float] = []
        self.kind = BACKGROUND

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record the writes, and wait for them if the current kind is `AT_ONCE`."""
        submit = BackgroundWriter.submit

        def timed_submit(writer: BackgroundWriter, write: Callable[[], object]) -> None:
            def timed() -> None:
                start = time.perf_counter()
                write()
                self.writes.append(time.perf_counter() - start)

            submit(writer, timed)
            if self.kind == AT_ONCE:
                writer.wait()

        BackgroundWriter.submit = timed_submit
        try:
            yield
        finally:
            BackgroundWriter.submit = submit

    def add(self, stall: float, cycle: float) -> None:
        """Record a checkpoint of the current kind and switch to the other kind."""
        self.stalls[self.kind].append(stall)
        self.cycles[self.kind].append(cycle)
        self.kind = AT_ONCE if self.kind == BACKGROUND else BACKGROUND

    def report(self, report: results.Report, name: str) -> None:
        """Report all measurements after the warm-up."""
        stalls, cycles = ({kind: each[WARM_UP:] for kind, each in of.items()} for of in (self.stalls, self.cycles))
        for what, values in (("stall", stalls), ("cycle", cycles)):
            report.add(f"{name}, {what}, {AT_ONCE}", values[AT_ONCE], "ms", 1e3)
            gain = ratio(values[AT_ONCE], values[BACKGROUND])
            report.add(f"{name}, {what}, {BACKGROUND}", values[BACKGROUND], "ms", 1e3, ratio=gain)
        report.add(f"{name}, write", self.writes[2 * WARM_UP :], "ms", 1e3)


class Clock(keras.callbacks.Callback):
    """Callback that measures the time between training steps, which the other callbacks take."""

    def __init__(self, recorder: Recorder, every: int) -> None:
        super().__init__()
        self._recorder, self._every = recorder, every
        self._ended = self._saved = self._stall = 0.0

    # Without state, `ExactResume` saves nothing for this callback.
    def get_state(self):
        return None

    def set_state(self, state):
        pass

    def on_train_batch_begin(self, batch, logs=None):
        if batch and batch % self._every == 0:
            self._stall = time.perf_counter() - self._ended

    def on_train_batch_end(self, batch, logs=None):
        self._ended = time.perf_counter()
        if (batch + 1) % self._every == 0:
            if self._saved:
                self._recorder.add(self._stall, self._ended - self._saved)
            self._saved = self._ended


def measure_fit(options: argparse.Namespace, build: Callable[[], keras.Model], folder: pathlib.Path) -> Recorder:
    """Measure checkpoints of `ExactResume`."""
    recorder, batch = Recorder(), make_batch(options.batch_size)
    model = build()
    model.compile(Momentum(1e-3, 0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    steps = (2 * (options.rounds + WARM_UP) + 1) * options.every
    callbacks = [Clock(recorder, options.every), ExactResume(folder, options.every)]
    with recorder.recording():
        # One more step, so that the last measured step is not the end of the epoch.
        model.fit(FunctionBatches(lambda step: batch, steps + 1), callbacks=callbacks, verbose=0)
    return recorder


def make_batch(size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(size, 32, 32, 3)).astype("float32"), rng.integers(10, size=size).astype("int32")


def main():
    parser = results.parser(__doc__, rounds=7)
    parser.add_argument("--every", type=int, default=8, help="steps between checkpoints (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=8, help="images per batch (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=9, help="residual blocks per stage (default: %(default)s)")
    default_widths = [64, 128, 256]
    parser.add_argument("--widths", type=int, nargs="+", default=default_widths, help="channels (default: 64 128 256)")
    parser.add_argument("--folder", help="folder for checkpoints, on the disk to measure (default: a temporary folder)")
    options = parser.parse_args()
    report = results.Report(__file__, options, ["tensorflow", "keras"])

    def build():
        return identity_resnet(blocks=options.blocks, widths=tuple(options.widths))

    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = pathlib.Path(temporary)
        measure_fit(options, build, folder).report(report, "fit")
        size = sum(path.stat().st_size for path in max(folder.glob("step-*")).iterdir())
    report.finish(
        f"{size / 1e6:.1f} MB a checkpoint, batch {options.batch_size}, {options.every} steps between checkpoints."
    )


if __name__ == "__main__":
    main()
