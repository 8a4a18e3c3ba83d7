"""`fit` in processes that are killed with SIGKILL at random moments and started again.

As a program: `python -m tests.support.killed_fit FOLDER KILLS SEED [NETWORK]` prints how many kills were tried, and how
many of them belong to runs that ended with the same bits as one that was not disturbed. NETWORK is "classifier", or
"adversarial" for a training step of one's own with two optimizers. The processes are forked behind the
imports, before anything is computed, so that a kill costs a second and not ten; a run is killed until it has ended.
"""

import functools
import hashlib
import json
import os
import pathlib
import random
import select
import signal
import sys
import time
import traceback

import keras
import numpy as np

from idmatters_tf.callbacks import ArrayBatches, ExactResume
from tests.support.adversarial import Adversarial

EPOCHS, STEPS = 5, 12
# Batches between one kill and the next.
MOST = 20


def classifier():
    """A network with its compiled optimizer, and what its `fit` monitors."""
    layers = [keras.layers.RandomFlip(), keras.layers.Flatten(), keras.layers.Dense(8, "relu")]
    layers += [keras.layers.BatchNormalization(), keras.layers.Dropout(0.4), keras.layers.Dense(2, "softmax")]
    model = keras.Sequential([keras.Input((4, 4, 1)), *layers])
    model.compile(keras.optimizers.Adam(0.02, use_ema=True), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, [model.optimizer], "val_loss"


def adversarial():
    """Two networks with an optimizer each, and what their `fit` monitors."""
    model, slow = Adversarial((4, 4, 1)), keras.optimizers.schedules.ExponentialDecay(0.02, 20, 0.5)
    generator = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(slow), initial_scale=1)
    eagerly = keras.backend.backend() == "jax"
    model.compile(keras.optimizers.Adam(0.02, use_ema=True), generator, run_eagerly=eagerly)
    return model, model.own_optimizers(), "critic"


def train(folder, progress=None, network=classifier):
    """Trains in a folder, to the end. Returns a checksum of the weights, slots, metrics and history.

    Args:
        folder: of the checkpoints and the log.
        progress: a file descriptor to which a byte is written after each batch.
        network: returns the model, its optimizers, and what is monitored.
    """
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS * 8 - 3, 4, 4, 1))
    y = (x.sum((1, 2, 3)) > 0).astype("int32")
    model, optimizers, monitored = network()
    callbacks = [
        ExactResume(folder / "checkpoints", every=2),
        keras.callbacks.ReduceLROnPlateau(monitored, patience=1, min_delta=0.1, mode="min"),
        keras.callbacks.CSVLogger(folder / "log.csv"),
    ]
    if progress is not None:
        callbacks.append(
            keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: os.write(progress, b"."))
        )
    batches = ArrayBatches(x, y, batch_size=8, seed=1)
    validation = (x, y) if network is classifier else None
    history = model.fit(batches, epochs=EPOCHS, callbacks=callbacks, validation_data=validation, verbose=0)
    found = hashlib.sha256(json.dumps(history.history).encode() + (folder / "log.csv").read_bytes())
    slots = [variable for each in optimizers for variable in each.variables]
    for variable in [*model.variables, *slots, *model.metrics_variables]:
        found.update(keras.ops.convert_to_numpy(variable).tobytes())
    return found.hexdigest()


def in_a_process(folder, after=None, delay=0.0, network=classifier):
    """Trains in a process of its own. Returns whether it was killed.

    Args:
        folder: in which it trains; the checksum is written to `result`.
        after: how many batches it is given before the kill; None: it is left alone.
        delay: seconds from there to the kill.
        network: see `train`.
    """
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reads)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "result").write_text(train(folder, writes, network))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(writes)
    if after is not None:
        seen, deadline = 0, time.monotonic() + 120
        while seen < after and time.monotonic() < deadline:
            # The pipe ends where the process does.
            if not select.select([reads], [], [], 1)[0]:
                continue
            got = os.read(reads, 1)
            if not got:
                break
            seen += 1
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    else:
        while os.read(reads, 1000):
            pass
    os.close(reads)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), f"the process ended with exit code {status}"
    return status == -signal.SIGKILL


def main(argv):
    """Tries so many kills, several in each run. Prints how many there were and how many of them were survived."""
    folder, kills, seed, *rest = argv
    chance, folder, kills = random.Random(seed), pathlib.Path(folder), int(kills)
    network = adversarial if rest == ["adversarial"] else classifier
    trained = functools.partial(in_a_process, network=network)
    trained(folder / "whole")
    expected = (folder / "whole" / "result").read_text()
    tried = survived = 0
    while tried < kills:
        run, here = folder / f"run-{tried}", 0
        killed = True
        while killed:
            if tried + here == kills:
                killed = trained(run)
            else:
                # Now and then while it builds or restores; else at any batch, in the middle of a checkpoint as well.
                after = 0 if chance.random() < 0.2 else chance.randrange(1, MOST)
                killed = trained(run, after, (3 if after == 0 else 0.05) * chance.random())
            here += killed
        tried += here
        intact = not list(run.rglob(".writing-*")) and not list(run.rglob("damaged-*"))
        survived += here * (intact and (run / "result").read_text() == expected)
        print(f"{survived} of {tried} kills survived", file=sys.stderr, flush=True)
    print(tried, survived)
    return 0


if __name__ == "__main__":
    main(sys.argv[1:])
