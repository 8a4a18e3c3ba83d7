"""Tests of the reasons and remedies for files that cannot be written."""

import errno
import resource
import types

import keras
import pytest
import tensorflow as tf

from trainers.cli.arguments import RunError
from trainers.training import export
from trainers.training.writing import why_not_written


@pytest.mark.parametrize(
    ("error", "reason", "remedy"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device", "Make room there"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "Disk quota exceeded", "Make room there"),
        (OSError("Can't write data (errno = 28, error message = 'No space left on device')"), "No space", "Make room"),
        (RuntimeError("Unable to close file (No space left on device)"), "No space left on device", "Make room there"),
        (tf.errors.ResourceExhaustedError(None, None, "/x/v; No space left on device"), "No space", "Make room"),
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system in", "Make the folder writable"),
        (PermissionError(errno.EACCES, "Permission denied"), "Permission denied in", "Make the folder writable"),
        (tf.errors.PermissionDeniedError(None, None, "/x/v; Permission denied"), "Permission denied in", "Make the"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), "Not a directory", "Fix this"),
        (tf.errors.DataLossError(None, None, "/x/v; something else [Op:Save]"), "something else", "Fix this"),
    ],
)  # fmt: skip
def test_the_reason_and_the_remedy(error, reason, remedy, tmp_path):
    found = why_not_written(error, tmp_path / "not made yet")
    assert found is not None
    assert found[0].startswith(reason)
    assert found[1].startswith(remedy)
    assert ("the file system /" in found[0]) == (remedy.startswith("Make room"))


def test_other_errors_are_not_explained(tmp_path):
    assert why_not_written(ValueError("a shape"), tmp_path) is None
    assert why_not_written(KeyError("no space left on device"), tmp_path) is None


class _Task:
    program = "trainers.cifar"
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
    assert "File too large (the file system /" in str(failed.value)
    assert str(failed.value).endswith(
        f"Make room there, then use python -m trainers.cifar --export-only '{tmp_path}/it'\"'\"'s'"
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
