"""Background writes of the checkpoints of a `fit`, on the backend of KERAS_BACKEND."""

import threading
import warnings

import keras
import numpy as np
import pytest

from idmatters_tf.callbacks import ArrayBatches, ExactResume, _encoding
from idmatters_tf.checkpointing import list_steps

# Number of batches in an epoch.
STEPS = 6
PATIENCE = 60


class InPlace(keras.callbacks.Callback):
    """Callback that changes an array in place and records the values of the variables after each batch."""

    def __init__(self):
        super().__init__()
        self.counts = np.zeros(3)
        self.seen, self.reads = [], 0

    def get_state(self):
        self.reads += 1
        return {"counts": self.counts}

    def set_state(self, state):
        self.counts[:] = state["counts"]

    def on_train_batch_end(self, batch, logs=None):
        self.counts += 1
        self.seen.append(values(self.model))


def values(model):
    # Lists of Python numbers are copies on every backend.
    return [keras.ops.convert_to_numpy(each).tolist() for each in [*model.variables, *model.optimizer.variables]]


def train(folder, *callbacks, epochs=1, run_eagerly=True, ignores=True):
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(4 * STEPS, 5)).astype("float32")
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", run_eagerly=run_eagerly)
    batches = ArrayBatches(x, x[:, :1] ** 2, batch_size=4, seed=0)
    resume = ExactResume(folder, every=2, keep=9, ignore=["InPlace", "Interrupt"] * ignores)
    model.fit(batches, epochs=epochs, callbacks=[*callbacks, resume], verbose=0)
    return model


def calls(monkeypatch, function):
    """Call `function(number)` at the beginning of each write of a checkpoint."""
    write, written = _encoding.Snapshot.write, []

    def called(snapshot, folder):
        written.append(folder)
        function(len(written))
        write(snapshot, folder)

    monkeypatch.setattr(_encoding.Snapshot, "write", called)


def test_training_continues_during_a_write_of_the_values_of_a_step(tmp_path, monkeypatch):
    release, kept = threading.Event(), InPlace()

    def wait_for_batch_4(number):
        # If training waited for this write, there would be no batch 4.
        assert number > 1 or release.wait(PATIENCE)

    calls(monkeypatch, wait_for_batch_4)
    at_batch_4 = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batch == 3 and release.set())
    train(tmp_path, kept, at_batch_4, run_eagerly=False, ignores=False)
    assert list_steps(tmp_path) == [2, 4, 6]
    for step in (2, 4, 6):
        saved = _encoding.read(tmp_path / f"step-0000000{step}")
        found = saved["state"]["variables"]
        assert [each.tolist() for each in (*found["model"], *found["optimizer"])] == kept.seen[step - 1]
        [counts] = saved["reached"]["states"]["InPlace"]["arrays"].values()
        assert counts.tolist() == [step] * 3
    # After the first step, and for each checkpoint.
    assert kept.reads == 4


@pytest.mark.parametrize(("write", "kept"), [(2, [2]), (3, [2, 4])])
def test_an_error_is_raised_when_the_next_checkpoint_is_due_or_at_the_end(tmp_path, monkeypatch, write, kept):
    def fail(number):
        if number == write:
            raise OSError(28, "No space left on device")

    calls(monkeypatch, fail)
    with pytest.raises(OSError, match="No space left on device") as found:
        train(tmp_path)
    (note,) = found.value.__notes__
    assert f"could not save the checkpoint of step {2 * write}" in note
    assert f"The last good checkpoint is that of step {kept[-1]}." in note
    # The lock is released, and no unfinished file is left.
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-0000000{step}" for step in kept]


@pytest.mark.parametrize("fails", [False, True])
def test_an_interrupted_fit_completes_its_write(tmp_path, monkeypatch, fails):
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 4:
                threading.Timer(0.2, release.set).start()
                raise KeyboardInterrupt

    release = threading.Event()

    def wait(number):
        assert number != 2 or release.wait(PATIENCE)
        if number == 2 and fails:
            raise OSError(28, "No space left on device")

    calls(monkeypatch, wait)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, Interrupt())
    assert list_steps(tmp_path) == ([2] if fails else [2, 4])
    resumed = InPlace()
    train(tmp_path, resumed)
    assert len(resumed.seen) == (4 if fails else 2)
    assert any("checkpoint of step 4" in str(each.message) for each in caught) == fails
