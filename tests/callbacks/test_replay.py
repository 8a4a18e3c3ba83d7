"""Training data that a resumed run reads again: the bits of an uninterrupted run, or an error."""

import itertools

import keras
import numpy as np
import pytest

from idmatters_tf.callbacks import ExactResume
from tests.callbacks.test_refusals import fit
from tests.support.stopped_fits import Killed, check_stopped, kill_at

X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
Y = X.sum(1, keepdims=True)
ROWS = 8


def generator():
    rng = np.random.default_rng(3)
    while True:
        rows = rng.integers(0, len(X), ROWS)
        yield X[rows], Y[rows]


def global_generator():
    while True:
        rows = np.random.randint(0, len(X), ROWS)  # noqa: NPY002
        yield X[rows], Y[rows]


class Draws(keras.utils.PyDataset):
    """Dataset that draws for each batch, and at the end of an epoch."""

    def __init__(self):
        super().__init__()
        self.rng, self.scale = np.random.default_rng(0), 1.0

    def __len__(self):
        return 5

    def __getitem__(self, index):
        rows = slice(ROWS * index, ROWS * index + ROWS)
        return X[rows] + self.scale * self.rng.normal(size=(ROWS, 4)), Y[rows]

    def on_epoch_end(self):
        self.scale = self.rng.random()


def pipelines():
    """Return pipelines of five batches whose positions cannot be restored, with their features side by side."""
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((X, Y))
    specs = tf.TensorSpec([4]), tf.TensorSpec([1])
    # Not NumPy's global generator: threads of the stopped fit, in the same process here, may still draw from it.
    rng = np.random.default_rng(0)

    def noise(x):
        return (x + rng.normal()).astype("float32")

    found = {
        "tf.random in a map": data.map(lambda x, y: (x + tf.random.normal([4]), y)),
        "from_generator": data.from_generator(lambda: iter(zip(X, Y, strict=True)), output_signature=specs).apply(
            tf.data.experimental.assert_cardinality(40)
        ),
        "take after shuffle": data.shuffle(40, seed=1).take(24).repeat(2).take(40),
        "cache after shuffle": data.shuffle(40, seed=1).cache(),
    }
    if keras.backend.backend() == "tensorflow":
        # On JAX, Keras draws for batches that it loads ahead before training.
        found["a Python function"] = data.map(
            lambda x, y: (tf.ensure_shape(tf.numpy_function(noise, [x], tf.float32), [4]), y)
        )
    data = tf.data.Dataset.zip(tuple(each.batch(ROWS) for each in found.values()))
    return data.map(lambda *pairs: (tf.concat([x for x, _ in pairs], 1), tf.add_n([y for _, y in pairs])))


CASES = {
    "a generator": lambda: {"x": generator(), "steps_per_epoch": 4},
    "a generator with NumPy's global generator": lambda: {"x": global_generator(), "steps_per_epoch": 4},
    "a PyDataset that draws": lambda: {"x": Draws(), "class_weight": None},
    "pipelines": lambda: {"x": pipelines()},
}


@pytest.mark.parametrize("name", CASES)
def test_stopped(name, tmp_path):
    """Training is stopped at the end of an epoch and within one."""

    def train(folder, kill):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Dropout(0.2), keras.layers.Dense(1)])
        model.compile("adam", "mse", run_eagerly=True)
        resume = ExactResume(folder, every=2, replay=True)
        history = model.fit(**CASES[name](), epochs=2, callbacks=[resume, kill], verbose=0)
        return {"history": history.history, "weights": model.get_weights()}, resume.resumed_at

    check_stopped(train, tmp_path, ("epoch ends", 0, None), ("batch", 1, 1))


def test_the_first_batch_that_does_not_repeat(tmp_path):
    first = iter([0])

    def data():
        for number in itertools.count():
            shift = 0 if number < 3 or next(first, None) == 0 else 1
            yield np.ones((2, 3)) + shift, np.ones((2, 1))

    with pytest.raises(Killed):
        fit(tmp_path, kill_at(("batch", 1, 1)), data=data(), steps_per_epoch=3, epochs=3, replay=True)
    with pytest.raises(ValueError, match="do not repeat: batch 3 differs from that before the interruption. Seed all"):
        fit(tmp_path, kill_at(None), data=data(), steps_per_epoch=3, epochs=3, replay=True)


def test_the_data_end(tmp_path):
    data = iter([(np.ones((2, 3)), np.ones((2, 1)))] * 4)
    with pytest.raises(ValueError, match="end after 4 batches"):
        fit(tmp_path, data=(batch for batch in data), steps_per_epoch=3, epochs=2, replay=True)
