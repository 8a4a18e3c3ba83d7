"""Calls of `fit` on several workers without any seed, which are repeated in one process.

`python -m tests.support.unseeded_fits [NAME...]` runs them. Each worker then repeats each `fit` in its own process,
from the initial weights and the order of the chief, and compares the weights and the history.
"""

import inspect
import pathlib
import random
import sys
import tempfile
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf._keras_internals.replicas import data as data_order
from idmatters_tf._tensorflow_internals import pipelines
from idmatters_tf.distribute import checks, multi_worker_strategy, order, tasks
from tests.support.fit_sources import aligned

X = np.random.default_rng(0).normal(size=(512, 8))


def build():
    """Return the model of the README."""
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


class Rows(keras.utils.PyDataset):
    """Batches of 64 rows in a fixed order."""

    def __init__(self, **options):
        super().__init__(**options)
        self.order = np.arange(len(X))

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return take(self.order[index * 64 :][:64])


class Shuffled(Rows):
    """Batches of rows that are shuffled after each epoch, as in many examples of Keras."""

    def on_epoch_end(self):
        np.random.shuffle(self.order)  # noqa: NPY002


def take(rows):
    return tuple(aligned(array.astype("float32")) for array in (X[rows], X[rows, :1]))


def draw():
    while True:
        yield take(np.random.choice(len(X), 64))  # noqa: NPY002


def pipeline(seed=None):
    return tf.data.Dataset.from_tensor_slices((X, X[:, :1])).shuffle(512, seed).batch(64).prefetch(2)


def files(policy=None):
    """Return a pipeline of four files, which TensorFlow would assign to workers."""
    folder = pathlib.Path(tempfile.mkdtemp())
    for number in range(4):
        lines = "".join(f"{','.join(map(str, row))}\n" for row in X[number::4])
        (folder / f"{number}.csv").write_text(lines)
    data = tf.data.TextLineDataset([str(folder / f"{number}.csv") for number in range(4)])
    data = data.map(lambda line: tf.io.decode_csv(line, [0.0] * 8)).map(lambda *row: (tf.stack(row), row[:1]))
    options = tf.data.Options()
    if policy is not None:
        options.experimental_distribute.auto_shard_policy = getattr(tf.data.experimental.AutoShardPolicy, policy)
    # Keras 3.15 counts a step after the last batch on one device if the number of batches is unknown.
    return data.shuffle(512).batch(64).with_options(options).apply(tf.data.experimental.assert_cardinality(8))


# Functions that return the arguments of `fit`, by name.
CASES = {
    "arrays": lambda: {"x": X, "y": X[:, :1], "batch_size": 64},
    "arrays, shuffled in batches": lambda: {"x": X, "y": X[:, :1], "batch_size": 64, "shuffle": "batch"},
    "a PyDataset": Rows,
    "a PyDataset with threads": lambda: Rows(workers=2),
    "a PyDataset, half of it in an epoch": lambda: {"x": Rows(), "steps_per_epoch": 4, "epochs": 4},
    "a PyDataset that shuffles": Shuffled,
    "a generator": lambda: {"x": draw(), "steps_per_epoch": 4},
    "tf.data": pipeline,
    "tf.data with a seed": lambda: pipeline(3),
    "tf.data of files": files,
}


def run_case(name, strategy):
    """Compare a `fit` on the workers with one in this process, which has no strategy."""
    states = []

    def synchronize(strategy):
        order.synchronize_generators(strategy)
        states.append((random.getstate(), np.random.get_state()))  # noqa: NPY002

    with strategy.scope():
        model = build()
    single = build()
    single.set_weights(model.get_weights())
    # Different on each worker.
    random.seed()
    np.random.seed()  # noqa: NPY002
    order.share_seeds(strategy)
    seed, _ = next(pipelines._seeds)
    with (
        mock.patch.object(checks, "synchronize_generators", synchronize),
        mock.patch.object(checks, "SharedOrder", side_effect=data_order.SharedOrder) as shared,
    ):
        history = model.fit(**arguments(name)).history
    pipelines.seed_later_pipelines(seed)
    next(pipelines._seeds)
    if states:
        random.setstate(states[0][0])
        np.random.set_state(states[0][1])  # noqa: NPY002
    with data_order.use_order(data_order.SharedOrder(shared.call_args.args[0], lambda: None)):
        expected = inspect.unwrap(keras.Model.fit)(single, **arguments(name)).history
    for found, value in zip(model.get_weights(), single.get_weights(), strict=True):
        np.testing.assert_allclose(found, value, 1e-6, 1e-6, err_msg=name)
    for metric, values in expected.items():
        np.testing.assert_allclose(history[metric], values, 1e-5, err_msg=name)
    assert len(set(expected["loss"])) > 1, "not trained"


def arguments(name):
    given = CASES[name]()
    return {"epochs": 3, "verbose": 0, **(given if isinstance(given, dict) else {"x": given})}


def main(argv):
    strategy = multi_worker_strategy()
    # The generators are those of the chief.
    numbers = tasks.gather(strategy, [np.random.random(), random.random()])  # noqa: NPY002
    assert all(each == numbers[0] for each in numbers)
    with strategy.scope():
        model = build()
    for policy in ("FILE", "OFF"):
        with pytest.raises(ValueError, match=f"Received: auto-sharding policy {policy}. .* use AutoShardPolicy.DATA"):
            model.fit(files(policy), verbose=0)
    for name in argv or CASES:
        print(name, flush=True)
        run_case(name, strategy)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
