"""Calls on two workers that differ. `python -m tests.support.worker_differences [NAME...]` prints their errors."""

import re
import sys

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf.distribute import find_cluster, is_chief, multi_worker_strategy
from tests.support.fits import build, fit

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X[:, :1] * 2


def dataset(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays)


def permuted(index):
    rows = np.random.default_rng(index).permutation(64)
    return dataset(X[rows], Y[rows]).batch(16)


def batches(count, index, short=None):
    """Yield batches of 16 rows, of which one is shorter on worker 1."""
    for step in range(count):
        size = 12 if index and step == short else 16
        yield X[16 * step % 64 :][:size].copy(), Y[16 * step % 64 :][:size].copy()


class Rows(keras.utils.PyDataset):
    def __init__(self, index):
        super().__init__()
        self.batches = list(batches(4, index, short=2))

    def __len__(self):
        return 4

    def __getitem__(self, step):
        return self.batches[step]


def change_weights(model, index):
    if not index:
        model.set_weights([np.ones((4, 1)), np.zeros(1)])


def freeze(model, index):
    model.layers[-1].trainable = not index


def change_momentum(model, index):
    fit(model, X, Y)
    model.optimizer.variables[-1].assign([3.0 * index])


def evaluate_on_chief(model, index):
    if not index:
        model.evaluate(X, Y, verbose=0)


def predict_more(model, index):
    model.predict(X[: 64 - index], verbose=0)


def noisy(index):
    return dataset(X, Y + index).map(lambda x, y: (x + tf.random.normal((4,)), y)).batch(16)


def arrays(index):
    return X, Y


def keep(model, index):
    pass


OTHER = "worker 1 does not train as worker 0: "
VALUES = "worker 1 has other values of {} than worker 0"
SIZE = "worker 1 has a batch of 12 examples, where worker 0 has 16"
# Each worker calls the first function with its model and index, and trains with what the second returns; the error.
DIFFERENCES = {
    "weights": (change_weights, arrays, f"{OTHER}the checksum of dense/kernel was"),
    "frozen": (freeze, arrays, f"{OTHER}.*trainable of dense/kernel was True, now False"),
    "momentum": (change_momentum, arrays, f"{OTHER}the checksum of sgd/dense_bias_momentum was"),
    "evaluates": (evaluate_on_chief, arrays, f"{OTHER}the call was .*evaluate.*, now .*fit"),
    "predicts more": (predict_more, arrays, f"{OTHER}the number of examples of x was 64, now 63"),
    "permuted": (keep, permuted, VALUES.format("x")),
    "divided": (keep, lambda index: dataset(X, Y).shard(2, index).batch(16), VALUES.format("x")),
    "other labels": (keep, noisy, VALUES.format("y")),
    "shorter": (keep, Rows, SIZE),
    "shorter generator": (keep, lambda index: batches(8, index, 3), SIZE),
    "ends": (keep, lambda index: batches(8 - 2 * index, 0), "The data of worker 1 end earlier than those of other"),
}


def main(argv):
    cluster = find_cluster()
    assert cluster is not None
    index = int(cluster.task.split()[1])
    strategy = multi_worker_strategy()
    assert is_chief() == (index == 0)
    assert multi_worker_strategy() is strategy
    for name in argv or DIFFERENCES:
        change, make, message = DIFFERENCES[name]
        # Names of layers and optimizers begin without a number.
        keras.utils.clear_session()
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = build((4,), keras.layers.Dense(1), optimizer=keras.optimizers.SGD(0.05, momentum=0.9))
        try:
            change(model, index)
            data = make(index)
            fit(model, *(data if isinstance(data, tuple) else (data,)), batch_size=16 if make is arrays else None)
            found = "no error"
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        print(f"{'ok' if re.search(message, found) else 'WRONG'} {name}: {found[:400]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
