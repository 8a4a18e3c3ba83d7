"""A run of `trainers.cifar` that is stopped and resumed, and the same run without interruption, in one process.

`KERAS_BACKEND=jax python -m tests.trainers.jax_runs FOLDER STEP [--without-tensorflow] ARGUMENTS...` stops the first
run by SIGTERM after a step. It prints exit codes, the output of `--evaluate` and the digests of the weights as JSON.
"""

# ruff: noqa: E402 - TensorFlow is hidden before the other imports

import contextlib
import hashlib
import io
import json
import os
import pathlib
import signal
import sys


class WithoutTensorFlow:
    """Finder of modules that does not find TensorFlow."""

    def __init__(self, finder):
        self._finder = finder

    def __getattr__(self, name):
        return getattr(self._finder, name)

    def find_spec(self, name, *arguments):
        return None if name == "tensorflow" else self._finder.find_spec(name, *arguments)


if "--without-tensorflow" in sys.argv:
    sys.argv.remove("--without-tensorflow")
    sys.meta_path[:] = [WithoutTensorFlow(finder) for finder in sys.meta_path]

from idmatters_tf.callbacks._encoding import read_arrays
from idmatters_tf.checkpointing import checkpoint_path, list_steps
from trainers.cifar import main
from trainers.training.reports import ReportEpochs


def digest(folder):
    step = list_steps(folder / "checkpoints")[-1]
    arrays = read_arrays(checkpoint_path(folder / "checkpoints", step))
    parts = [name.encode() + value.tobytes() for name, value in sorted(arrays.items())]
    return step, hashlib.sha256(b"".join(parts)).hexdigest()


def stop_at(step):
    """Send SIGTERM to this process at a step of the next run."""
    end = ReportEpochs.on_train_batch_end
    batches = iter(range(1, step + 1))

    def on_train_batch_end(self, batch, logs=None):
        if next(batches, None) == step:
            os.kill(os.getpid(), signal.SIGTERM)
        end(self, batch, logs)

    ReportEpochs.on_train_batch_end = on_train_batch_end
    return lambda: setattr(ReportEpochs, "on_train_batch_end", end)


def run():
    folder, step, *options = sys.argv[1:]
    stopped, whole = pathlib.Path(folder, "stopped"), pathlib.Path(folder, "whole")
    restore = stop_at(int(step))
    codes = [main([*options, "--out", str(stopped)])]
    restore()
    at = digest(stopped)[0]
    codes.append(main([*options, "--out", str(stopped)]))
    # The exports are those of the resumed run.
    from trainers.training import train

    train.export_newest = lambda *_: None
    codes.append(main([*options, "--out", str(whole)]))
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        codes.append(main(["--evaluate", str(stopped)]))
    results = {"codes": codes, "stopped at": at, "digests": [digest(stopped), digest(whole)]}
    print(json.dumps({**results, "evaluated": output.getvalue()}))


if __name__ == "__main__":
    run()
