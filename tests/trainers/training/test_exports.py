"""Exports on a full disk."""

import resource
import types

import keras
import pytest

from trainers.cifar import PROGRAM
from trainers.cli.arguments import RunError
from trainers.run.folder import Run
from trainers.training import export
from trainers.training.settings import Task


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
    export.export_newest(Task(PROGRAM.name, PROGRAM.resolve(), whole), whole.path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((whole.path / file).stat().st_size - 1, hard))
    try:
        with pytest.raises(RunError) as failed:
            export.export_newest(Task(PROGRAM.name, PROGRAM.resolve(), run), run.path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in str(failed.value)
    assert str(failed.value).endswith(
        "Make sure that the disk is writable and not full, then use "
        f"python -m trainers.cifar --export-only '{tmp_path}/it'\"'\"'s'"
    )
    assert (run.path / "model.keras").exists() == (file != "model.keras")
    assert not (run.path / "saved_model").exists()
