"""Calls on two workers that differ. `python -m tests.support.worker_differences [NAME...]` prints their errors."""

# pyright: reportArgumentType=false
import re
import sys

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf.distribute import find_cluster, is_chief, multi_worker_strategy

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X[:, :1] * 2


def build(index):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    return model


def fit(model, x=X, y=Y, **arguments):
    model.fit(x, y, **{"batch_size": 16 if y is not None else None, "verbose": 0, "shuffle": False, **arguments})


def weights(model, index):
    if not index:
        model.set_weights([np.ones((4, 1)), np.zeros(1)])
    fit(model)


def rate(model, index):
    if index:
        model.optimizer.learning_rate = 0.001
    fit(model)


def frozen(model, index):
    model.layers[0].trainable = not index
    fit(model)


def momentum(model, index):
    fit(model)
    if index:
        model.optimizer.variables[-1].assign([3.0])
    fit(model)


def permuted(model, index):
    rows = np.random.default_rng(index).permutation(64)
    fit(model, tf.data.Dataset.from_tensor_slices((X[rows], Y[rows])).batch(16), None)


def divided(model, index):
    fit(model, tf.data.Dataset.from_tensor_slices((X, Y)).shard(2, index).batch(16), None)


def drawn(model, index):
    rng = np.random.default_rng(index)

    def draw():
        for row in rng.permutation(64):
            yield X[row], Y[row]

    types = (tf.TensorSpec((4,), tf.float32), tf.TensorSpec((1,), tf.float32))
    fit(model, tf.data.Dataset.from_generator(draw, output_signature=types).batch(16, drop_remainder=True), None)


def other_labels(model, index):
    data = tf.data.Dataset.from_tensor_slices((X, Y + index)).map(lambda x, y: (x + tf.random.normal((4,)), y))
    fit(model, data.batch(16), None)


class Rows(keras.utils.PyDataset):
    """Batches, of which the third is shorter on one worker."""

    def __init__(self, index):
        super().__init__()
        self.index = index

    def __len__(self):
        return 4

    def __getitem__(self, step):
        size = 12 if self.index and step == 2 else 16
        return X[16 * step :][:size].copy(), Y[16 * step :][:size].copy()


def shorter(model, index):
    fit(model, Rows(index), None)


def generator(index, batches):
    for step in range(batches):
        size = 12 if index and step == 3 else 16
        yield X[16 * step % 64 :][:size].copy(), Y[16 * step % 64 :][:size].copy()


def shorter_generator(model, index):
    fit(model, generator(index, 8), None)


def ends(model, index):
    fit(model, generator(0, 8 - 2 * index), None)


def evaluates(model, index):
    if index:
        fit(model)
    else:
        model.evaluate(X, Y, verbose=0)


def predicts_more(model, index):
    model.predict(X[: 64 - index], verbose=0)


# Functions of the model and of the index of the worker, and the error message.
DIFFERENCES = {
    weights: "worker 1 does not train as worker 0: the checksum of sequential/dense/kernel was",
    rate: "worker 1 does not train as worker 0: the checksum of sgd/learning_rate was",
    frozen: "worker 1 does not train as worker 0: .*trainable of sequential/dense/kernel was True, now False",
    momentum: "worker 1 does not train as worker 0: the checksum of sgd/sequential_dense_bias_momentum was",
    permuted: "worker 1 has other values of x than worker 0",
    divided: "worker 1 has other values of x than worker 0",
    drawn: "worker 1 has other values of x than worker 0",
    other_labels: "worker 1 has other values of y than worker 0",
    shorter: "worker 1 has a batch of 12 examples, where worker 0 has 16",
    shorter_generator: "worker 1 has a batch of 12 examples, where worker 0 has 16",
    ends: "The data of worker 1 end earlier than those of other workers",
    evaluates: "worker 1 does not train as worker 0: the call was .*evaluate.*, now .*fit",
    predicts_more: "worker 1 does not train as worker 0: the number of examples of x was 64, now 63",
}


def main(argv):
    cluster = find_cluster()
    assert cluster is not None
    index = int(cluster.task.split()[1])
    strategy = multi_worker_strategy()
    assert is_chief() == (index == 0)
    assert multi_worker_strategy() is strategy
    for function, message in DIFFERENCES.items():
        if argv and function.__name__ not in argv:
            continue
        keras.backend.clear_session()
        with strategy.scope():
            model = build(index)
        try:
            function(model, index)
            found = "no error"
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        is_right = bool(re.search(message, found))
        print(f"{'ok' if is_right else 'WRONG'} {function.__name__}: {found[:400]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
