"""`fit` with `ExactResume` on several workers or in one process, for runs that are stopped and started again.

`python -m tests.support.worker_fits FOLDER SOURCE [OPTION ...]` trains in a folder that all workers share, with data of
`tests.support.fit_sources`. Each worker writes a byte to `progress-INDEX` after each batch, and its
results to `result-INDEX.json`. SOURCE "failures" makes `fit` fail on worker 1 for each reason in `FAILURES`, and prints
the messages. Options:

one        train in one process on one device
plain      a network whose results do not depend on the number of replicas
stop=N     pause after N batches, on the last worker
"""

import contextlib
import json
import os
import pathlib
import signal
import sys
import time
import warnings
from unittest import mock

import keras
import numpy as np

from idmatters_tf.callbacks import ExactResume
from idmatters_tf.callbacks._encoding import Snapshot
from idmatters_tf.checkpointing import FolderLock
from idmatters_tf.distribute import chief_only, multi_worker_strategy
from tests.support.fit_sources import BATCH, SHAPE, SOURCES, STEPS, problem
from tests.support.killed_fit import checksum

# Reasons, with messages in regular expressions.
FAILURES = {
    "another activation": "is a checkpoint of another run: the model: Dense.activation was .tanh., now .relu.",
    "other data": "worker 1 does not train as worker 0: the checksum of batch 0 was",
    "the folder is in use": "is in use by another process",
    "another folder": "must be a folder that all workers share",
    "a full disk": "No space left on device.*could not save the checkpoint of step",
    "other weights": "kernel of the model differs between worker 0 and worker 1",
}


class Observer(keras.callbacks.Callback):
    """Callback that writes a byte after each batch, draws a number, and may pause training or change a weight."""

    def __init__(self, path, resume, stop=None, changes=False):
        super().__init__()
        self.resume = resume
        self.path, self.stop, self.changes = path, stop, changes
        self.rng = np.random.default_rng(int(str(path)[-1]))

    def get_state(self):
        return self.rng.bit_generator.state

    def set_state(self, state):
        self.rng.bit_generator.state = state

    def on_train_batch_end(self, batch, logs=None):
        self.rng.random()
        np.random.random()  # noqa: NPY002
        with open(self.path, "a") as file:
            file.write(".")
        # Moments between batches.
        time.sleep(0.05)
        if self.stop is not None:
            self.stop -= 1
            if not self.stop:
                self.resume.pause()
        if self.changes:
            variable = self.model.trainable_variables[0].value.values[0]
            variable.assign(variable + 1.0)


def optimizer(kind):
    """Return an optimizer: "", "accumulate" for two batches, or "mixed" for mixed precision with overflows."""
    if kind == "mixed":
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.02), 2.0**24, dynamic_growth_steps=4)
    return keras.optimizers.Adam(0.02, gradient_accumulation_steps=2 if kind == "accumulate" else None)


def network(plain=False, activation="tanh", kind=""):
    rest = [] if plain else [keras.layers.BatchNormalization(), keras.layers.Dropout(0.4)]
    layers = [keras.layers.Flatten(), keras.layers.Dense(8, activation), *rest, keras.layers.Dense(2, "softmax")]
    model = keras.Sequential([keras.Input(SHAPE), *layers])
    model.compile(optimizer(kind), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def fit(folder, index, source, scope=contextlib.nullcontext, stop=None, failure=None, plain=False, kind=""):
    """Return the results of a `fit` by name."""
    keras.utils.set_random_seed(0)
    np.random.seed(index)  # noqa: NPY002
    with scope():
        keras.config.set_dtype_policy("mixed_float16" if kind == "mixed" else "float32")
        model = network(plain, "relu" if failure == "another activation" else "tanh", kind)
    x, y = problem(STEPS * BATCH)
    data = SOURCES[source][0](x + (failure == "other data"), y, folder)
    checkpoints = folder / ("elsewhere" if failure == "another folder" else "checkpoints")
    resume = ExactResume(checkpoints, "2 steps", pause_on=signal.SIGTERM)
    observer = Observer(folder / f"progress-{index}", resume, stop, failure == "other weights")
    logger = keras.callbacks.CSVLogger(folder / "log.csv")
    callbacks = [resume, keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=1.0), observer]
    callbacks += [logger] if scope is contextlib.nullcontext else chief_only(logger)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(**data, epochs=2, callbacks=callbacks, verbose=0)
    return {
        "weights": checksum(model.variables),
        "slots": checksum(model.optimizer.variables),
        "metrics": checksum(model.metrics_variables),
        "history": history.history,
        "generators": [int(observer.rng.integers(1 << 30)), int(np.random.randint(1 << 30))],  # noqa: NPY002
        "CSVLogger": "" if index else (folder / "log.csv").read_text(),
        # Not compared with another run.
        "resumed_at": resume.resumed_at,
        "is_paused": resume.is_paused,
        "warnings": [str(each.message) for each in caught if each.category is UserWarning],
        "values": np.concatenate([np.ravel(weight) for weight in model.get_weights()]).tolist(),
    }


def fail(folder, index, scope):
    """Print the message of each failure of worker 1 on all workers."""
    full = OSError(28, "No space left on device")
    for number, failure in enumerate(FAILURES):
        run = folder / str(number)
        run.mkdir(exist_ok=True)
        if failure == "another activation":
            fit(run, index, "`FunctionBatches`", scope, stop=3)
        with contextlib.ExitStack() as stack:
            if failure == "the folder is in use" and index:
                stack.callback(FolderLock(run / "checkpoints" / "worker-1").release)
            if failure == "a full disk" and index:
                stack.enter_context(mock.patch.object(Snapshot, "write", side_effect=full))
            try:
                fit(run, index, "`FunctionBatches`", scope, failure=failure if index else None)
                print("no error", flush=True)
            except Exception as error:
                notes = " ".join(getattr(error, "__notes__", ()))
                print(f"{number} {type(error).__name__} {error} {notes}".replace("\n", " "), flush=True)


def main(argv):
    folder, source, *words = argv
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    options = dict(word.partition("=")[::2] for word in words)
    index = json.loads(os.environ.get("TF_CONFIG") or '{"task": {"index": 0}}')["task"]["index"]
    scope = contextlib.nullcontext if "one" in options else multi_worker_strategy().scope
    if source == "failures":
        fail(folder, index, scope)
        return 0
    stops = "stop" in options and ("one" in options or index)
    results = fit(
        folder,
        index,
        source,
        scope,
        int(options["stop"]) if stops else None,
        None,
        "plain" in options,
        options.get("kind", ""),
    )
    (folder / f"result-{index}.json").write_text(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
