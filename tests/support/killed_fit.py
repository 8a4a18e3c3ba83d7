"""`fit` in processes that are killed by SIGKILL at random moments and started again.

`python -m tests.support.killed_fit FOLDER KILLS SEED` trains with the data of each source in
`tests.support.fit_sources`, or with `--tasks` each KerasHub task in `tests.support.hub_models`, on each number of
devices. It prints the number of kills survived. A kill is survived if the run ends with the weights, slots, metrics,
history, CSV file and TensorBoard scalars of an uninterrupted run, bit for bit. The processes are forked after the
imports, so that a kill costs one second instead of ten. A run is killed until it has ended.
"""

import argparse
import hashlib
import importlib
import itertools
import json
import multiprocessing
import os
import pathlib
import random
import signal
import sys
import time

import keras
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util import tensor_util

from idmatters_tf.callbacks import ExactResume
from tests.support.fit_sources import BATCH, SHAPE, SOURCES, STEPS, installed_sources, problem

# Number of batches between two kills, exclusive. Two kills fit into the other runs, which have 16 batches.
MOST_OF_CLASSIFIER, MOST = 10, 8
# Delay of a kill.
WRITING = "writing"
# Time limit of a process in seconds on a busy machine.
PATIENCE = 240


def classifier():
    """Return a compiled network and the quantity that its `fit` monitors."""
    layers = [keras.layers.RandomFlip(), keras.layers.Flatten(), keras.layers.Dense(8, "relu")]
    layers += [keras.layers.BatchNormalization(), keras.layers.Dropout(0.4), keras.layers.Dense(2, "softmax")]
    model = keras.Sequential([keras.Input(SHAPE), *layers])
    model.compile(keras.optimizers.Adam(0.02, use_ema=True), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, "val_loss"


def quick():
    """Return a network that compiles quickly and is not validated, for more kills in the same time."""
    model = keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Dropout(0.4)])
    model.add(keras.layers.Dense(2, "softmax"))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, "loss"


NETWORKS = {"classifier": classifier, "quick": quick}


def build(network, devices):
    """Return the result of `network` on a number of logical devices. Call it before any computation."""
    if devices == 1:
        return network()
    if keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_num_cpu_devices", devices)
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        return network()
    import tensorflow as tf

    [processor] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * devices)
    with tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(devices)]).scope():
        return network()


def train(folder, progress, source, devices, network):
    """Train in a folder to the end. Return all results for the comparison with an uninterrupted run, by name.

    Files that all runs share are in the parent of the folder. A byte is written to `progress` after each batch. The
    source is the name of training data in `SOURCES`, or of a task with its network.
    """
    descriptor = progress.fileno()
    keras.utils.set_random_seed(0)
    model, monitored, *own = build(network, devices)
    # On one device the last batch of an epoch is smaller.
    x, y = problem(STEPS * BATCH - (3 if devices == 1 else 0))
    callbacks = [
        ExactResume(folder / "checkpoints", every=2),
        keras.callbacks.ReduceLROnPlateau(monitored, patience=1, min_delta=0.1, mode="min"),
        keras.callbacks.CSVLogger(folder / "log.csv"),
        keras.callbacks.TensorBoard(folder / "events", write_graph=False, update_freq=1),
    ]
    callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: os.write(descriptor, b".")))
    [data] = own or [SOURCES[source][0](x, y, folder.parent)]
    validation = (x, y) if network is classifier else None
    epochs = 3 if network is classifier else 2
    history = model.fit(**data, epochs=epochs, callbacks=callbacks, validation_data=validation, verbose=0)
    scalars = sorted((*point, value) for point, value in shown_scalars(folder / "events").items())
    return {
        "weights": checksum(model.variables),
        "slots": checksum(model.optimizer.variables),
        "metrics": checksum(model.metrics_variables),
        "history": history.history,
        "CSVLogger": (folder / "log.csv").read_text(),
        "TensorBoard": f"{len(scalars)} scalars {hashlib.sha256(json.dumps(scalars).encode()).hexdigest()}",
    }


def checksum(variables):
    """Return a checksum of variables, with their values on each of TensorFlow's devices."""
    found = hashlib.sha256()
    for variable in variables:
        for part in getattr(variable.value, "values", [variable.value]):
            found.update(keras.ops.convert_to_numpy(part).tobytes())
    return found.hexdigest()


def shown_scalars(folder):
    """Return the scalars of TensorBoard by (run, tag, step). Check that repeated points have equal values."""
    found = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.HasField("tensor"):
                    point, number = (path.parent.name, value.tag, event.step), tensor_util.make_ndarray(value.tensor)
                    if found.setdefault(point, number.item()) != number.item():
                        raise ValueError(f"{point} is {found[point]} and {number.item()}")
    return found


class Failed(Exception):
    """A process of a run has failed or does not end."""


def work(folder, **options):
    """Train in a folder, and write the results to its file `result`."""
    with open(folder / "progress", "a") as progress:
        (folder / "result").write_text(json.dumps(train(folder, progress, **options)))


def in_a_process(folder, after=None, delay=0.0, **options):
    """Train in a separate process. Return True if it was killed.

    It is killed after a number of batches and a delay in seconds; with WRITING, when a checkpoint is being written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    progress = folder / "progress"
    progress.touch()
    begin, deadline = progress.stat().st_size, time.monotonic() + PATIENCE
    child = multiprocessing.get_context("fork").Process(target=work, args=(folder,), kwargs=options)
    child.start()
    if after is not None:
        while child.is_alive() and progress.stat().st_size < begin + after and time.monotonic() < deadline:
            time.sleep(0.0005)
        wait(folder, delay)
        child.kill()
    child.join(PATIENCE)
    if child.exitcode not in (0, -signal.SIGKILL):
        child.kill()
        raise Failed(f"{folder}: the process ended with exit code {child.exitcode}")
    return child.exitcode == -signal.SIGKILL


def wait(folder, delay):
    """Wait for `delay` of `in_a_process`."""
    if delay != WRITING:
        time.sleep(delay)
        return
    give_up = time.monotonic() + 0.2
    while not list(folder.glob("checkpoints/.writing-*")) and time.monotonic() < give_up:
        time.sleep(0.0002)


def moment(chance, most):
    """Return a random moment for a kill before `most` batches, as `after` and `delay` of `in_a_process`."""
    if chance.random() < 0.2:
        # During the construction or restoration of the model.
        return 0, 3 * chance.random()
    # At any batch: between two batches, in a step, or during the write of a checkpoint.
    return chance.randrange(1, most), chance.choice([WRITING, WRITING, *[0.05 * chance.random()] * 3])


def attempt(folder, kills, chance, **options):
    """Try a number of kills at random moments, several per run. Return the number survived."""
    most = MOST_OF_CLASSIFIER if options["network"] is classifier else MOST
    in_a_process(folder / "whole", **options)
    expected = json.loads((folder / "whole" / "result").read_text())
    tried = survived = 0
    while tried < kills:
        run, here, was_killed = folder / f"run-{tried}", 0, True
        while was_killed:
            after, delay = (None, 0.0) if tried + here == kills else moment(chance, most)
            was_killed = in_a_process(run, after, delay, **options)
            here += was_killed
        tried += here
        result = json.loads((run / "result").read_text())
        different = [
            f"{name}: {result[name]}, not {value}" for name, value in expected.items() if result[name] != value
        ]
        different += [f"{path} is left" for path in (*run.rglob(".writing-*"), *run.rglob("damaged-*"))]
        for text in different:
            print(f"{run}: {text}", file=sys.stderr)
        survived += 0 if different else here
    return survived


def main(argv):
    """Print, as JSON, [source, devices, kills survived] of each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("kills", type=int, help="number of kills in each case")
    parser.add_argument("seed")
    parser.add_argument("--devices", nargs="+", type=int, default=[1])
    parser.add_argument("--network", default="classifier", choices=NETWORKS)
    parser.add_argument("--tasks", action="store_true", help="train the tasks of KerasHub")
    parser.add_argument("--only", nargs="+", default=[""], help="train cases whose names contain one of these words")
    options = parser.parse_args(argv)
    networks = dict.fromkeys(installed_sources(), NETWORKS[options.network])
    if options.tasks:
        networks = importlib.import_module("tests.support.hub_models").TASKS
    networks = {name: each for name, each in networks.items() if any(word in name for word in options.only)}
    modules = {"tensorflow"} if options.tasks else {module for source in networks for module in SOURCES[source][1]}
    for module in sorted(modules):
        importlib.import_module(module)
    counts = []
    for number, (devices, source) in enumerate(itertools.product(options.devices, networks)):
        folder = options.folder / f"{devices}-{number:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        chance = random.Random(f"{options.seed} {source} {devices}")
        case = {"source": source, "devices": devices, "network": networks[source]}
        try:
            survived = attempt(folder, options.kills, chance, **case)
        except Failed as error:
            print(error, file=sys.stderr)
            survived = 0
        counts.append([source, devices, survived])
        print(*counts[-1], file=sys.stderr, flush=True)
    print(json.dumps(counts), flush=True)
    return 0


if __name__ == "__main__":
    main(sys.argv[1:])
