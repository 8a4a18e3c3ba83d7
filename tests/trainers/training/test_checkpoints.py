"""Checkpoints of a run: damage, full disks, and checkpoints of other runs and networks."""

import resource
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf.optimizers import Momentum
from trainers.cli.arguments import RunError, UsageError
from trainers.training.checkpoints import Checkpoints, list_steps, restore_weights


class Subject:
    """Small network with an optimizer, a step, and their checkpoints."""

    def __init__(self, folder, units=50, identity=None):
        self.model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])
        self.optimizer = Momentum()
        self.optimizer.build(self.model.trainable_variables)
        self.step = tf.Variable(0, dtype=tf.int64)
        objects = {"model": self.model, "optimizer": self.optimizer, "step": self.step}
        self.checkpoints = Checkpoints(folder, identity=identity, **objects)

    def advance(self):
        """Make an update with artificial gradients."""
        self.step.assign_add(1)
        gradients = [tf.fill(v.shape, tf.cast(self.step, tf.float32)) for v in self.model.trainable_variables]
        self.optimizer.apply(gradients, self.model.trainable_variables)

    def values(self):
        variables = [*self.model.variables, *self.optimizer.momentums]
        return [np.array(v) for v in variables] + [self.step.numpy()]


def assert_same(one, other):
    for a, b in zip(one.values(), other.values(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def five_steps(tmp_path_factory):
    """Return a subject that has saved each of five steps."""
    subject = Subject(tmp_path_factory.mktemp("checkpoints"))
    for step in range(1, 6):
        subject.advance()
        subject.checkpoints.save(step)
    return subject


@pytest.fixture
def subject(five_steps, tmp_path):
    """Return the same subject with its own folder."""
    shutil.copytree(five_steps.checkpoints.folder, tmp_path, dirs_exist_ok=True)
    subject = Subject(tmp_path)
    assert subject.checkpoints.restore() == 5
    return subject


def restored(folder):
    other = Subject(folder)
    return other, other.checkpoints.restore()


def test_the_newest_is_restored_and_the_last_ones_are_kept(five_steps, subject, tmp_path):
    assert list_steps(tmp_path) == [3, 4, 5]
    other, step = restored(tmp_path)
    assert step == 5
    assert_same(other, five_steps)
    # The same step can be saved again.
    subject.checkpoints.save(5)
    assert restored(tmp_path)[1] == 5
    assert restored(tmp_path / "new")[1] is None


@pytest.mark.parametrize("damage", ["truncate", "flip", "manifest"])
def test_a_damaged_newest_is_reported_and_the_one_before_is_used(subject, tmp_path, capsys, damage):
    newest = tmp_path / "step-00000005"
    data = newest / "checkpoint.data-00000-of-00001"
    if damage == "manifest":
        (newest / "manifest.json").write_text("")
    else:
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content if damage == "flip" else content[:-1])
    weights = Subject(tmp_path / "unused").model
    assert restore_weights(tmp_path, weights) == 4
    capsys.readouterr()
    other, step = restored(tmp_path)
    assert step == 4
    assert "step-00000005 is damaged" in capsys.readouterr().err
    np.testing.assert_array_equal(weights.variables[0], other.model.variables[0])
    other.advance()
    other.checkpoints.save(5)
    assert_same(other, subject)
    assert restored(tmp_path)[1] == 5
    assert not capsys.readouterr().err


_TOO_LARGE = (
    "step 6 could not be saved.*File too large.*The last good checkpoint is that of step 5. Make sure that the disk is "
    "writable and not full, then run the same command again"
)


def test_a_full_disk_leaves_the_earlier_ones_and_no_rest(subject, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    subject.advance()
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(RunError, match=_TOO_LARGE):
            subject.checkpoints.save(6)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-0000000{step}" for step in (3, 4, 5)]
    assert restored(tmp_path)[1] == 5
    subject.checkpoints.save(6)
    assert restored(tmp_path)[1] == 6


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    subject = Subject(tmp_path, identity={"seed": 0, "rate": 0.1})
    subject.checkpoints.save(1)
    subject.checkpoints.save_best(1)
    identity = {"seed": 1, "rate": 0.2}
    other = Subject(tmp_path, identity=identity)
    expected = "step-00000001 is a checkpoint of another run: seed was 0, now 1; rate was 0.1, now 0.2. Move it back"
    for folder in (tmp_path, tmp_path / "best"):
        with pytest.raises(UsageError, match=f"{folder}/{expected}"):
            restore_weights(folder, other.model, identity)
    assert restore_weights(tmp_path, other.model) == 1
    shutil.rmtree(tmp_path / "step-00000001")
    with pytest.raises(UsageError, match=f"best/{expected}"):
        other.checkpoints.restore()
    shutil.rmtree(tmp_path / "best")
    # A checkpoint that does not identify its run.
    Subject(tmp_path).checkpoints.save(3)
    with pytest.raises(UsageError, match=r"step-00000003 is a checkpoint of another run: run.json was 'unreadable'"):
        other.checkpoints.restore()


def test_a_checkpoint_of_another_network_is_one_sentence(subject, tmp_path):
    other = Subject(tmp_path, units=51)
    for restore in (other.checkpoints.restore, lambda: restore_weights(tmp_path, other.model)):
        with pytest.raises(UsageError, match="step-00000005 is not a checkpoint of this network and optimizer"):
            restore()


def test_the_records_are_kept_with_the_weights_and_vouched_for_with_them(subject, tmp_path):
    records = [{"kind": "test", "step": step, "seconds": 0.1, "loss": 1 / 3, "error": 0.5} for step in range(7)]
    subject.checkpoints.save(6, records)
    assert subject.checkpoints.records(6) == records
    with open(tmp_path / "step-00000006" / "metrics.jsonl", "a") as stream:
        stream.write("5\n")
    assert restored(tmp_path)[1] == 5
