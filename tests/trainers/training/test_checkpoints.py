"""Checkpoints of a run: damage, full disks, and checkpoints of other runs and networks."""

import json
import resource
import shutil
import signal
import types
from typing import Any

import keras
import numpy as np
import pytest

from idmatters_tf.callbacks import _encoding, _training_state, load_weights
from idmatters_tf.checkpointing import list_steps, store
from tests.support.processes import records
from tests.support.programs import run_here
from tests.trainers.conftest import TINY
from trainers import cifar
from trainers.cli.arguments import RunError
from trainers.run.folder import Run
from trainers.training.reports import BEST, Reports, save_best


@pytest.fixture
def run(finished, tmp_path):
    """Return a copy of a finished run, without its results and its newest checkpoint."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-00000006")
    return run


def test_a_damaged_newest_checkpoint_falls_back_to_the_previous_one(finished, run):
    data = run / "checkpoints" / "step-00000004" / "arrays.npy"
    data.write_bytes(data.read_bytes()[:-1])
    for command in (("--evaluate", run), ("--resume", "--out", run)):
        done = run_here("trainers.cifar", *command)
        assert done.returncode == 0, done.stderr
        assert "step-00000004 is damaged" in done.stderr
    assert "resuming from step 2" in done.stderr
    kept = [{**record, "seconds": 0, "images_per_second": 0} for record in records(run)]
    assert kept == [{**record, "seconds": 0, "images_per_second": 0} for record in records(finished)]


@pytest.mark.parametrize("name", ["arrays.npy", "manifest.json"])
def test_changed_bytes_are_detected(run, name):
    path = run / "checkpoints" / "step-00000004" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    done = run_here("trainers.cifar", "--evaluate", run)
    assert "step-00000004 is damaged" in done.stderr
    assert f"{run}, step 2: test error" in done.stdout


def test_a_full_disk_keeps_earlier_checkpoints_and_no_partial_one(run):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        done = run_here("trainers.cifar", "--resume", "--out", run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.returncode == 1, done.stderr
    expected = "File too large. The last good checkpoint is that of step 4. Make sure that the disk is writable and "
    assert f"{expected}not full, then run the same command again" in done.stderr
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["best", "step-00000002", "step-00000004"]
    done = run_here("trainers.cifar", "--resume", "--out", run)
    assert done.returncode == 0, done.stderr


def test_foreign_checkpoints_are_rejected(finished, run, tmp_path):
    other = tmp_path / "other"
    words = [*TINY.split(), "--seed", 1, "--learning-rate", 0.2, "--steps", 4, "--out", other]
    assert run_here("trainers.cifar", *words).returncode == 0
    (other / "result.json").unlink()
    expected = "is a checkpoint of another run: learning_rate was 0.1, now 0.2; seed was 0, now 1."
    shutil.rmtree(other / "checkpoints" / "step-00000004")
    shutil.copytree(finished / "checkpoints" / "step-00000006", other / "checkpoints" / "step-00000006")
    for command in (("--evaluate", other), ("--export-only", other), ("--resume", "--out", other)):
        done = run_here("trainers.cifar", *command)
        assert done.returncode == 2
        assert f"step-00000006 {expected}" in done.stderr
    # A network of another version of this package.
    newest = run / "checkpoints" / "step-00000004"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_training_state, "find_difference", lambda *_: "kernel is missing")
        done = run_here("trainers.cifar", "--resume", "--out", run)
    assert (done.returncode, "is a checkpoint of another model: kernel is missing. Use" in done.stderr) == (2, True)
    # Formats of other versions, with and without the present layout.
    text = (newest / "state.json").read_text()
    for other_text, message in (
        (text.replace(f'"format", {_encoding.FORMAT}', '"format", 9'), "has format 9 of idmatters_tf"),
        ('{"dict": []}', "is a checkpoint of an earlier version of idmatters_tf"),
    ):
        (newest / "state.json").write_text(other_text)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "find_damage", lambda *_: None)
            done = run_here("trainers.cifar", "--resume", "--out", run)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_a_resumed_run_first_repeats_an_interrupted_evaluation(run, finished, monkeypatch):
    evaluate = Reports.evaluate
    monkeypatch.setattr(Reports, "evaluate", lambda self, step, _: evaluate(self, step, lambda: True))
    done = run_here("trainers.cifar", "--resume", "--out", run)
    assert done.returncode == 143, done.stderr
    assert [record["step"] for record in records(run) if record["kind"] == "test"] == [0, 3]
    monkeypatch.undo()
    done = run_here("trainers.cifar", "--resume", "--out", run)
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "result.json").read_text())["last_loss"] == records(finished)[-1]["loss"]


def test_the_best_weights_replace_earlier_ones(finished, tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    task: Any = types.SimpleNamespace(identity={"seed": 0}, run=Run(tmp_path))
    best = tmp_path / "checkpoints" / BEST
    for step in (10, 5):
        save_best(task, step, model)
        assert list_steps(best) == [step]
    weights = model.get_weights()
    model.layers[0].kernel.assign([[7.0], [8.0]])
    assert load_weights(model, best, {"seed": 0}) == 5
    np.testing.assert_array_equal(model.get_weights()[0], weights[0])
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(RunError, match="could not be saved in"):
        save_best(task, 6, model)


def test_a_signal_during_the_first_evaluation(tmp_path, monkeypatch, capsys):
    """The message does not claim that there is a checkpoint, and its command starts the run."""
    with monkeypatch.context() as patch:
        patch.setattr("trainers.training.train._fit", lambda *_: False)
        assert cifar.main([*TINY.split(), "--out", str(tmp_path / "run")]) == 128 + signal.SIGTERM
    assert "stopped by SIGTERM; no checkpoint yet. To resume: python -m" in "".join(capsys.readouterr())
    assert cifar.main(["--resume", "--out", str(tmp_path / "run")]) == 0
