"""Exact resume of a `fit` on two devices, compared with an uninterrupted one on each device.

Devices are created before a backend starts: `test_backends` runs the tests in processes with two devices.
"""

import contextlib
import functools

import keras
import numpy as np
import pytest

from idmatters_tf.callbacks import ExactResume, _devices
from tests.support import two_devices
from tests.support.fit_sources import aligned
from tests.support.stopped_fits import check_stopped, kill_at

STEPS = 8  # batches in an epoch: seven of 6 examples and one of 2
rng = np.random.default_rng(0)
X = rng.normal(size=(44, 6, 6, 1))
Y = (X.mean((1, 2, 3)) > 0).astype("int32")

inside = pytest.mark.skipif(not two_devices.ARE_MADE, reason="runs in processes with two devices")
tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's strategies")
jax = pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX's distributions")


def classifier():
    layers = [keras.layers.Dropout(0.3), keras.layers.Flatten(), keras.layers.Dense(4, "tanh")]
    layers += [keras.layers.BatchNormalization(), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((6, 6, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.05, use_ema=True), loss, metrics=["accuracy"])
    return model


def plain_arrays():
    return {"x": X, "y": Y, "batch_size": 6}


class Rows(keras.utils.PyDataset):
    """Dataset whose batches are views of an array."""

    def __init__(self, x):
        super().__init__()
        self.x = x

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        rows = slice(6 * index, 6 * index + 6)
        return self.x[rows], Y[rows]


def train(folder, kill, scope=two_devices.scope, data=plain_arrays):
    """Return the values of all variables on each device and the history, and the step at which training resumed."""
    keras.utils.set_random_seed(1)
    resume = ExactResume(folder, every=3)
    callbacks = [resume, kill, keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]
    with scope():
        model = classifier()
    with contextlib.nullcontext() if keras.backend.backend() == "tensorflow" else scope():
        history = model.fit(**data(), epochs=2, callbacks=callbacks, verbose=0)
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return (two_devices.parts(variables), history.history), resume.resumed_at


@inside
def test_stopped_and_started_again(tmp_path):
    x = aligned(np.float32(X))
    fit = functools.partial(train, data=lambda: {"x": Rows(x)})
    (values, _), _ = check_stopped(fit, tmp_path, ("batch", 1, 4))
    # TensorFlow computes in place with aligned arrays of a generator, without copying them.
    np.testing.assert_array_equal(x, np.float32(X))
    assert all(len(parts) == 2 for parts in values)
    # On TensorFlow moving averages and metrics differ. On JAX all devices have the same values.
    assert any((one != other).any() for one, other in values) == (keras.backend.backend() == "tensorflow")
    several = {"tensorflow": r"2 CPUs \(MirroredStrategy\)", "jax": r"2 CPUs \(DataParallel, batch 2\)"}
    with pytest.warns(
        UserWarning, match=f"saved on {several[keras.backend.backend()]}, now one device.*up to rounding"
    ):
        fit(tmp_path / "stopped", kill_at(None), contextlib.nullcontext)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"aggregation": "sum", "synchronization": "on_read"}, ([6.0, 0.0], [3.0], [4.0, 0.0, 0.0])),
        ({"aggregation": "mean", "synchronization": "on_read"}, ([2.0, 2.0], [1.5], [2.0, 2.0, 2.0])),
        ({"aggregation": "sum"}, ([1.0, 1.0], [1.0], [2.0, 2.0, 2.0])),
    ],
)
def test_values_on_another_number_of_devices(options, expected):
    variable = keras.Variable(np.zeros(1, "float32"), **options)
    values = [np.full(1, value, "float32") for value in (1, 2, 3)]
    for value, before, result in zip((values, values[:2], values[1]), (3, 2, 2), expected, strict=True):
        found = []
        for first in range(len(result)):
            _devices.assign(variable, value, (before, len(result), first))
            found.append(float(variable[0]))
        assert found == result


@inside
@tensorflow
def test_parts_of_replicas():
    """Two replicas receive the same parts of a batch as in `tf.distribute`, also of a smaller last batch."""
    import tensorflow as tf

    from idmatters_tf._keras_internals.fit import _split_among_replicas

    strategy = two_devices._strategy()

    def parts(batches):
        return [
            [each.numpy().tolist() for each in strategy.experimental_local_results(values)]
            for batch in batches
            for values in batch
        ]

    data = tf.data.Dataset.range(10).map(lambda x: (x, 2 * x)).batch(5)
    found = parts(_split_among_replicas(iter(data), strategy))
    assert found == parts(strategy.experimental_distribute_dataset(data))
    assert parts(_split_among_replicas([(tf.range(2),)], strategy)) == [[[0], [1]]]


@pytest.mark.slow
@inside
@jax
def test_a_model_split_over_devices(tmp_path):
    (values, _), _ = check_stopped(functools.partial(train, scope=two_devices.split), tmp_path, ("batch", 1, 4))
    assert any((one != other).any() for one, other in values)
