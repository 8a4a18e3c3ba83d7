"""Claim: `ExactResume` takes at most half of `BackupAndRestore`'s time in the training thread, and 1.1 of its CPU time.

    python benchmarks/checkpoint_cost.py [--rounds N] [--steps N] [--width N]

Plain `fit`, `BackupAndRestore(save_freq=10)` and `ExactResume(every=10)` in turn, of a dense layer of 7,000 x 7,000
weights with Adam (49 million weights, 588 MB per checkpoint), on arrays in batches of 32. The seconds of the training
thread are those in which the callbacks handle the end of a batch with a checkpoint. CPU seconds are those of all
threads of the process during `fit`, with the write of the last checkpoint.
"""

import functools
import os
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from harness import results
from harness.timing import in_turn, ratio
from idmatters_tf.callbacks import ExactResume

EVERY = 10


class Timed(keras.callbacks.CallbackList):
    """Callbacks whose time at the end of batches with a checkpoint is measured."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.seconds = []

    def on_train_batch_end(self, batch, logs=None):
        start = time.perf_counter()
        super().on_train_batch_end(batch, logs)
        if (batch + 1) % EVERY == 0:
            self.seconds.append(time.perf_counter() - start)


def make_callbacks(kind, folder):
    if kind == "BackupAndRestore":
        return [keras.callbacks.BackupAndRestore(folder, save_freq=EVERY)]
    return [ExactResume(folder, every=EVERY)] if kind == "ExactResume" else []


def measure(kind, model, x, steps):
    """Return seconds per checkpoint of the training thread, CPU seconds and wall-clock seconds of a `fit`."""
    with tempfile.TemporaryDirectory() as folder:
        shown = {"epochs": 1, "steps": steps, "verbose": 0}
        callbacks = Timed(make_callbacks(kind, folder), add_history=True, model=model, **shown)
        wall, cpu = time.perf_counter(), time.process_time()
        model.fit(x, x, batch_size=32, epochs=1, verbose=0, callbacks=callbacks)
        return statistics.median(callbacks.seconds), time.process_time() - cpu, time.perf_counter() - wall


def main():
    parser = results.parser(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=7000)
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((options.width,)), keras.layers.Dense(options.width)])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(32 * options.steps, options.width)).astype("float32")
    model.fit(x[:64], x[:64], batch_size=32, verbose=0)
    kinds = ("plain fit", "BackupAndRestore", "ExactResume")
    ways = {kind: functools.partial(measure, kind, model, x, options.steps) for kind in kinds}
    measured = in_turn(ways, options.rounds)
    report = results.Report(__file__, options, ("tensorflow", "keras"))
    for index, name in enumerate(("training thread, per checkpoint", "CPU of `fit`", "`fit`")):
        values = {kind: [each[index] for each in measured[kind]] for kind in kinds}
        for kind in kinds[0 if index else 1 :]:
            of_backup = ratio(values[kind], values["BackupAndRestore"]) if kind == "ExactResume" else None
            report.add(f"{name}: {kind}", values[kind], "s", ratio=of_backup)
    report.finish(f"{model.count_params():,} weights with Adam, {options.steps} steps, a checkpoint every {EVERY}.")


if __name__ == "__main__":
    main()
