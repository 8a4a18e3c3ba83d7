"""Checkpoints of a `fit`: writing, reading, and comparison with the current run."""

import functools
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

import keras

from idmatters_tf import _checkpointing, _environment, _replacing
from idmatters_tf._background import BackgroundWriter
from idmatters_tf._run_description import describe_environment_change, describe_other_run
from idmatters_tf.callbacks import _encoding

FORMAT = 1
REMEDY = "Start the same script as before, or pass another folder to ExactResume."
_PACKAGES = ("tensorflow", "tensorflow-cpu", "jax", "jaxlib", "keras", "keras-nightly", "numpy", "idmatters-tf")


def save(folder: pathlib.Path, step: int, state: Mapping[str, Any], keep: int, writer: BackgroundWriter) -> None:
    """Copy the state of a step to host memory, write its checkpoint in the background and remove the oldest ones.

    Args:
        folder: folder of the checkpoints.
        step: number of completed training batches.
        state: plain data and arrays. The format and the environment are added.
        keep: number of checkpoints to keep.
        writer: writer that executes the write. Its next `submit` or `wait` raises the errors: OSError if the
            checkpoint cannot be written (earlier ones are unchanged), FolderLost if the folder or its lock was removed.
    """
    snapshot = _encoding.Snapshot({"format": FORMAT, "environment": _describe_environment(), **state})
    writer.submit(lambda: _write(folder, step, snapshot, keep))


def _write(folder, step, snapshot, keep):
    try:
        with _checkpointing.saving(folder, step) as path:
            snapshot.write(path)
    except OSError as error:
        newest = _checkpointing.describe_newest(folder)
        error.add_note(f"ExactResume could not save the checkpoint of step {step} in {folder}. {newest}")
        raise
    _checkpointing.remove_oldest(folder, keep)


def load_newest(folder: pathlib.Path) -> tuple[pathlib.Path, Any]:
    """Return the path and the state of the newest intact checkpoint, or the folder and None if there is none."""
    _replacing.remove_unfinished(folder)

    def on_damage(path, damage):
        if (path / "checkpoint.index").exists():
            raise ValueError(f"{path} was written by another program. Pass a separate folder to ExactResume.")
        warnings.warn(f"Checkpoint {path} is damaged ({damage}). Falling back to the previous one.", stacklevel=2)
        _checkpointing.rename_damaged(path)

    step = _checkpointing.find_newest_intact(folder, _encoding.STATE, on_damage)
    if step is None:
        return folder, None
    path = _checkpointing.checkpoint_path(folder, step)
    return path, _encoding.read(path)


def check_identity(path: pathlib.Path, saved: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raise ValueError if a checkpoint has another format or belongs to another run."""
    if saved["format"] != FORMAT:
        raise ValueError(f"{path} has format {saved['format']}, this version reads {FORMAT}. {REMEDY}")
    error = describe_other_run(path, saved["identity"], identity)
    if error is not None:
        raise ValueError(f"{error} {REMEDY}")


def warn_of_environment(saved: Mapping[str, Any]) -> None:
    """Warn if packages, threads or devices differ, so that results will differ from those of an uninterrupted run."""
    warning = describe_environment_change(saved["environment"], _describe_environment())
    if warning is not None:
        warnings.warn(warning, stacklevel=2)


def _describe_environment():
    numerics = _environment.describe_numerics(keras.backend.backend())
    return {"versions": _collect_versions(), "numerics": numerics}


@functools.cache
def _collect_versions():
    # Reading the metadata of installed packages takes milliseconds.
    return _environment.collect_versions(_PACKAGES)
