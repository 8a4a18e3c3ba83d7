"""Checkpoints and exports of a run: damage, full disks, and those of other runs, networks and data."""

import json
import resource
import shutil
import signal
import types

import keras
import pytest

from tests.support.processes import records
from tests.support.programs import run_here
from tests.trainers.conftest import TINY
from trainers import cifar
from trainers.cifar import PROGRAM
from trainers.cli.arguments import RunError
from trainers.run.folder import Run
from trainers.training import export
from trainers.training.reports import Reports
from trainers.training.settings import Task


@pytest.fixture
def run(finished, tmp_path):
    """Return a copy of a finished run, without its results and its newest checkpoint."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-00000006")
    return run


def test_a_full_disk_keeps_earlier_checkpoints_and_no_partial_one(run, without_exports):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        done = run_here("trainers.cifar", "--resume", "--out", run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.returncode == 1, done.stderr
    assert f"error: {run} cannot be written: File too large. Make sure that the disk is writable and" in done.stderr
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000002", "step-00000004"]
    done = run_here("trainers.cifar", "--resume", "--out", run, code=0)


def test_checkpoints_of_other_runs_are_rejected(finished, tmp_path, without_saved_model):
    other = tmp_path / "other"
    words = [*TINY.split(), "--seed", 1, "--learning-rate", 0.2, "--out", other]
    run_here("trainers.cifar", *words, code=0)
    (other / "result.json").unlink()
    expected = "is a checkpoint of another run: learning_rate was 0.1, now 0.2; seed was 0, now 1."
    shutil.rmtree(other / "checkpoints" / "step-00000006")
    shutil.copytree(finished / "checkpoints" / "step-00000006", other / "checkpoints" / "step-00000006")
    for command in (("--evaluate", other), ("--export-only", other), ("--resume", "--out", other)):
        done = run_here("trainers.cifar", *command, code=2)
        assert f"step-00000006 {expected}" in done.stderr


def test_a_resumed_run_first_repeats_an_evaluation_that_was_killed(run, finished, monkeypatch, without_exports):
    def fail(*_):
        raise RunError("killed.")

    monkeypatch.setattr(Reports, "evaluate", fail)
    run_here("trainers.cifar", "--resume", "--out", run, code=1)
    assert [record["step"] for record in records(run) if record["kind"] == "test"] == [0, 3]
    monkeypatch.undo()
    run_here("trainers.cifar", "--resume", "--out", run, code=0)
    assert json.loads((run / "result.json").read_text())["last_loss"] == records(finished)[-1]["loss"]


def test_a_signal_during_the_first_evaluation(tmp_path, monkeypatch, capsys, without_exports):
    """The message does not claim that there is a checkpoint, and its command starts the run."""
    with monkeypatch.context() as patch:
        patch.setattr("trainers.training.train._fit", lambda *_: False)
        assert cifar.main([*TINY.split(), "--out", str(tmp_path / "run")]) == 128 + signal.SIGTERM
    assert "stopped by SIGTERM; no checkpoint yet. To resume: python -m" in "".join(capsys.readouterr())
    assert cifar.main(["--resume", "--out", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize("file", ["model.keras", "saved_model/saved_model.pb"])
def test_a_full_disk_during_the_export_raises(file, tmp_path, monkeypatch):
    """Test errors while Keras writes model.keras and while TensorFlow writes the SavedModel."""
    inputs = keras.Input((8, 8, 3))
    network = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(inputs)))
    monkeypatch.setattr(
        Run, "data", lambda self: types.SimpleNamespace(class_names=(), image_shape=(8, 8, 3), classes=2)
    )
    monkeypatch.setattr(Task, "build_network", lambda *_: network)
    monkeypatch.setattr(Task, "recorded_identity", {})
    monkeypatch.setattr(export, "restore", lambda *_: 1)
    whole, run = Run(tmp_path / "whole"), Run(tmp_path / "it's")
    export.export_newest(Task(PROGRAM.name, PROGRAM.resolve(), whole))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((whole.path / file).stat().st_size - 1, hard))
    try:
        with pytest.raises(RunError) as failed:
            export.export_newest(Task(PROGRAM.name, PROGRAM.resolve(), run))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in str(failed.value)
    assert str(failed.value).endswith(
        "Make sure that the disk is writable and not full, then use "
        f"python -m trainers.cifar --export-only '{tmp_path}/it'\"'\"'s'"
    )
    assert (run.path / "model.keras").exists() == (file != "model.keras")
    assert not (run.path / "saved_model").exists()
