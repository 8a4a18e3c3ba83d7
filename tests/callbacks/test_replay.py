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


CASES = {
    "a generator": lambda: {"x": generator(), "steps_per_epoch": 4},
    "a generator with NumPy's global generator": lambda: {"x": global_generator(), "steps_per_epoch": 4},
    "a PyDataset that draws": lambda: {"x": Draws(), "class_weight": None},
}


def pipelines():
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    specs = tf.TensorSpec([4]), tf.TensorSpec([1])
    # Not NumPy's global generator: threads of the stopped fit, in the same process here, may still draw from it.
    rng = np.random.default_rng(0)

    def noise(x):
        return (x + rng.normal()).astype("float32")

    return {
        "tf.random in a map": data.map(lambda x, y: (x + tf.random.normal([4]), y)),
        "from_generator": data.from_generator(lambda: iter(zip(X, Y, strict=True)), output_signature=specs),
        "take after shuffle": data.shuffle(40, seed=1).take(24),
        "cache after shuffle": data.shuffle(40, seed=1).cache(),
        "a Python function": data.map(
            lambda x, y: (tf.ensure_shape(tf.numpy_function(noise, [x], tf.float32), [4]), y)
        ),
    }


PIPELINES = ["tf.random in a map", "from_generator", "take after shuffle", "cache after shuffle"]
if keras.backend.backend() == "tensorflow":
    # On JAX, Keras draws for batches that it loads ahead before training.
    PIPELINES.append("a Python function")


@pytest.mark.parametrize("moment", [("batch", 1, 1), ("epoch ends", 1, None)])
@pytest.mark.parametrize("name", [*CASES, *PIPELINES])
def test_stopped(name, moment, tmp_path):
    def train(folder, kill):
        keras.utils.set_random_seed(0)
        data = CASES[name]() if name in CASES else {"x": pipelines()[name].batch(ROWS)}
        if name == "from_generator":
            data["steps_per_epoch"] = 5
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        resume = ExactResume(folder, every=2, replay=True)
        history = model.fit(**data, epochs=3, callbacks=[resume, kill], verbose=0)
        return (history.history, model.get_weights()), resume.resumed_at

    check_stopped(train, tmp_path, moment)


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
