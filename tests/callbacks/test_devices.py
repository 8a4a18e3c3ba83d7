"""Exact resume of a `fit` on two devices, compared with an uninterrupted one on each device.

Devices are created before a backend starts: `test_on_two_devices` runs the other tests in one process per backend, on
JAX together with tests of other files.
"""

import contextlib
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from idmatters_tf.callbacks import ExactResume, _devices
from tests.support import two_devices
from tests.support.fit_sources import aligned

STEPS = 8  # batches in an epoch: seven of 6 examples and one of 2
rng = np.random.default_rng(0)
X = rng.normal(size=(44, 6, 6, 1))
Y = (X.mean((1, 2, 3)) > 0).astype("int32")

inside = pytest.mark.skipif(not two_devices.ARE_MADE, reason="runs in processes with two devices")
tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's strategies")
jax = pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX's distributions")


class Killed(Exception):
    """Exception in place of SIGKILL."""


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


def train(folder, scope=two_devices.scope, kill=None, data=plain_arrays):
    """Return the values of all variables on each device, and the history."""
    keras.utils.set_random_seed(1)
    at = {}

    def happens(batch, logs):
        if (at["epoch"], batch) == kill:
            raise Killed

    killer = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: at.update(epoch=epoch), on_train_batch_end=happens
    )
    callbacks = [ExactResume(folder, every=3), killer, keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]
    with scope():
        model = classifier()
    with contextlib.nullcontext() if keras.backend.backend() == "tensorflow" else scope():
        history = model.fit(**data(), epochs=2, callbacks=callbacks, verbose=0)
    return two_devices.parts([*model.variables, *model.optimizer.variables, *model.metrics_variables]), history.history


def check_resumed(folder, **options):
    """Check that a `fit` that is stopped and started again equals an uninterrupted one. Return its values."""
    whole = train(folder / "whole", **options)
    with pytest.raises(Killed):
        train(folder / "stopped", kill=(1, 4), **options)
    again = train(folder / "stopped", **options)
    for ours, theirs in zip(whole[0], again[0], strict=True):
        assert [part.tobytes() for part in ours] == [part.tobytes() for part in theirs]
    assert whole[1] == again[1]
    return whole[0]


@inside
def test_stopped_and_started_again(tmp_path):
    x = aligned(np.float32(X))
    values = check_resumed(tmp_path, data=lambda: {"x": Rows(x)})
    # TensorFlow computes in place with aligned arrays of a generator, without copying them.
    np.testing.assert_array_equal(x, np.float32(X))
    assert all(len(parts) == 2 for parts in values)
    # On TensorFlow moving averages and metrics differ. On JAX all devices have the same values.
    assert any((one != other).any() for one, other in values) == (keras.backend.backend() == "tensorflow")
    several = {"tensorflow": r"2 CPUs \(MirroredStrategy\)", "jax": r"2 CPUs \(DataParallel, batch 2\)"}
    with pytest.warns(
        UserWarning, match=f"saved on {several[keras.backend.backend()]}, now one device.*up to rounding"
    ):
        train(tmp_path / "stopped", scope=contextlib.nullcontext, data=lambda: {"x": Rows(x)})


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
    values = check_resumed(tmp_path, scope=two_devices.split)
    assert any((one != other).any() for one, other in values)


# Tests of other files in the process on JAX.
ON_JAX = [
    "test_exact_resume.py::test_stopped_and_started_again[several steps per execution, loss scale, class weights]"
]
SLOWLY_ON_JAX = ["test_background_saving.py", "test_exact_resume.py", "test_resume_and_callbacks.py", "test_sources.py"]


@pytest.mark.skipif(two_devices.ARE_MADE, reason="this is the process with two devices")
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_on_two_devices(backend, slow):
    pytest.importorskip(backend)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_devices.py", *["--slow"] * slow]
    if backend == "jax":
        command += SLOWLY_ON_JAX if slow else ON_JAX
    env = {**os.environ, "KERAS_BACKEND": backend, two_devices.VARIABLE: "2"}
    folder = pathlib.Path(__file__).parent
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
