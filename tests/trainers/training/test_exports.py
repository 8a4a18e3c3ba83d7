"""Tests of the messages of exports: a full disk, and the code that loads them."""

import resource
import types

import keras
import pytest

from trainers import cifar
from trainers.cli.arguments import RunError
from trainers.training import export


class _Task:
    program = cifar.PROGRAM
    settings = types.SimpleNamespace(data=types.SimpleNamespace(has_preprocessing=False))


@pytest.mark.parametrize("file", ["model.keras", "saved_model/saved_model.pb"])
def test_a_full_disk_during_the_export_is_named(file, tmp_path, monkeypatch):
    """Test errors while Keras writes model.keras and while TensorFlow writes the SavedModel."""
    inputs = keras.Input((8, 8, 3))
    network = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(inputs)))
    monkeypatch.setattr(export, "in_float32", lambda task, model: network)
    monkeypatch.setattr(export.Run, "data", lambda self: _Described())
    whole, run = export.Run(tmp_path / "whole"), export.Run(tmp_path / "it's")
    export.export_run(_Task(), whole, network, 1)  # pyright: ignore[reportArgumentType]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((whole.path / file).stat().st_size - 1, hard))
    try:
        with pytest.raises(RunError) as failed:
            export.export_run(_Task(), run, network, 1)  # pyright: ignore[reportArgumentType]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in str(failed.value)
    assert str(failed.value).endswith(
        "Make sure that the disk is writable and not full, then use "
        f"python -m trainers.cifar --export-only '{tmp_path}/it'\"'\"'s'"
    )
    assert (run.path / "model.keras").exists() == (file != "model.keras")
    assert not (run.path / "saved_model").exists()


class _Described:
    output_names = ()


def test_the_printed_python_is_python_for_every_path(tmp_path):
    for name in ("it's", 'a "quoted" one', "a\\b", "new\nline", "\x1b[2J", "\u202egnp"):
        keras_path, saved_model = tmp_path / name / "model.keras", tmp_path / name / "saved_model"
        text = export.how_to_load(keras_path, saved_model)
        assert len(text.splitlines()) == 2
        assert text.replace("\n", "").isprintable()
        first, second = (line.partition(":")[2].strip().split("; ") for line in text.splitlines())
        for statement, path in ((first[-1], keras_path), (second[1], saved_model)):
            literal = statement[statement.index("(") + 1 :].partition(")")[0]
            assert eval(literal) == str(path)
