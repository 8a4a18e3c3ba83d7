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

from idmatters_tf.callbacks import ExactResume
from tests.support import two_devices
from tests.support.adversarial import Adversarial

STEPS = 8  # batches in an epoch: seven of 6 examples and one of 2
rng = np.random.default_rng(0)
X = rng.normal(size=(44, 6, 6, 1))
Y = (X.mean((1, 2, 3)) > 0).astype("int32")

inside = pytest.mark.skipif(not two_devices.ARE_MADE, reason="runs in processes with two devices")
tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's strategies")
jax = pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX's distributions")


class Killed(Exception):
    """Exception in place of SIGKILL."""


class Called(Adversarial):
    """Model with two optimizers. Keras builds the compiled one, which is not used."""

    def call(self, x):
        return self.critic(x)


def classifier(scaled=False, **options):
    layers = [keras.layers.Dropout(0.3), keras.layers.Flatten(), keras.layers.Dense(4, "tanh")]
    layers += [keras.layers.BatchNormalization(), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((6, 6, 1)), *layers])
    optimizer = keras.optimizers.Adam(0.05, use_ema=True)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, dynamic_growth_steps=5)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **options)
    return model, optimizer.variables


def adversarial(**options):
    model = Called()
    model.compile(keras.optimizers.Adam(0.02, use_ema=True), keras.optimizers.Adam(0.01), **options)
    for optimizer, part in zip(model.own_optimizers(), (model.critic, model.generator), strict=True):
        optimizer.build(part.trainable_variables)
    slots = [variable for each in model.own_optimizers() for variable in each.variables]
    return model, [*slots, *(each.state for each in model.random)]


def plain_arrays():
    return {"x": X, "y": Y, "batch_size": 6}


def few_arrays():
    return {"x": X[:24], "y": Y[:24], "batch_size": 6}


def aligned(array):
    """Return a copy of an array at an address at which TensorFlow does not copy it."""
    buffer = np.zeros(64 + array.nbytes, np.uint8)
    start = -buffer.ctypes.data % 64
    found = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[:] = array
    return found


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


def train(folder, make=classifier, scope=two_devices.scope, kill=None, epochs=2, data=plain_arrays, **options):
    """Return the values of all variables on each device, and the history."""
    keras.utils.set_random_seed(1)
    at = {}

    def happens(batch, logs):
        if (at["epoch"], batch) == kill:
            raise Killed

    killer = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: at.update(epoch=epoch), on_train_batch_end=happens
    )
    callbacks = [ExactResume(folder, every=3), killer]
    if make is classifier:
        callbacks.append(keras.callbacks.SwapEMAWeights(swap_on_epoch=True))
    with scope():
        model, more = make(**options)
    with contextlib.nullcontext() if keras.backend.backend() == "tensorflow" else scope():
        history = model.fit(**data(), epochs=epochs, callbacks=callbacks, verbose=0)
    return two_devices.parts([*model.variables, *more, *model.metrics_variables]), history.history


def assert_same(one, other):
    for ours, theirs in zip(one[0], other[0], strict=True):
        assert [each.tobytes() for each in ours] == [each.tobytes() for each in theirs]
    assert one[1] == other[1]


def stopped(folder, *moments, **options):
    """Return the result of `train`, stopped at each moment (epoch, batch) and started again."""
    for moment in moments:
        with pytest.raises(Killed):
            train(folder, kill=moment, **options)
    return train(folder, **options)


@inside
def test_stopped_and_started_again(tmp_path):
    x = aligned(np.float32(X))
    data = {"data": lambda: {"x": Rows(x)}}
    whole = train(tmp_path / "whole", **data)
    # TensorFlow computes in place with aligned arrays of a generator, without copying them.
    np.testing.assert_array_equal(x, np.float32(X))
    assert all(len(parts) == 2 for parts in whole[0])
    differing = [parts for parts in whole[0] if (parts[0] != parts[1]).any()]
    # On TensorFlow moving averages and metrics differ. On JAX all devices have the same values.
    assert bool(differing) == (keras.backend.backend() == "tensorflow")
    assert_same(stopped(tmp_path / "stopped", (1, 4), **data), whole)
    several = {"tensorflow": r"2 CPUs \(MirroredStrategy\)", "jax": r"2 CPUs \(DataParallel, batch 2\)"}
    with pytest.raises(ValueError, match=f"set of devices was '{several[keras.backend.backend()]}', now 'one device'"):
        train(tmp_path / "stopped", scope=contextlib.nullcontext, **data)


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
@tensorflow
def test_two_optimizers_and_a_generator(tmp_path):
    whole = train(tmp_path / "whole", adversarial)
    assert_same(stopped(tmp_path / "stopped", (1, 4), make=adversarial), whole)


@pytest.mark.slow
@inside
@tensorflow
def test_eagerly(tmp_path):
    options = {"run_eagerly": True, "scaled": True, "epochs": 1, "data": few_arrays}
    whole = train(tmp_path / "whole", **options)
    assert_same(stopped(tmp_path / "stopped", (0, 3), **options), whole)


@pytest.mark.slow
@inside
@jax
def test_a_model_split_over_devices(tmp_path):
    whole = train(tmp_path / "whole", scope=two_devices.split)
    assert any((parts[0] != parts[1]).any() for parts in whole[0])
    assert_same(stopped(tmp_path / "stopped", (1, 4), scope=two_devices.split), whole)


# Tests of other files in the process on JAX.
ON_JAX = [
    "test_background_saving.py::test_training_continues_during_a_write_of_the_values_of_a_step",
    "test_exact_resume.py::test_stopped_and_started_again[several steps per execution, loss scale, class weights]",
]
SLOWLY_ON_JAX = ["test_background_saving.py", "test_exact_resume.py", "test_resume_and_callbacks.py", "test_sources.py"]
SLOWLY_ON_JAX += ["--slow"]


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
