"""Checkpoints of a run, written by `idmatters_tf.callbacks.ExactResume`, with its identity and its records."""

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from idmatters_tf._arguments import describe_differences
from idmatters_tf.callbacks import saved
from idmatters_tf.checkpointing import checkpoint_path, describe_newest, list_steps, remove_steps
from trainers.cli.arguments import RunError, UsageError
from trainers.cli.startup import print_message
from trainers.training.task import Task

# Number of checkpoints that are kept, besides the one with the lowest test error.
KEPT = 3
# Subfolder of the weights with the lowest test error.
BEST = "best"
# Name under which checkpoints contain the identity and the records of their run.
RUN = "Training"
# The last version of this package that reads `tf.train.Checkpoint`s of runs.
LAST_COMMIT = "8df171c8"
REMEDY = "Make sure that the disk is writable and not full"


def read(
    folder: str | os.PathLike, identity: Mapping[str, Any] | None = None, repair: bool = False
) -> saved.Checkpoint | None:
    """Return the newest intact checkpoint of a run with this identity, or None, with a message about each damaged one.

    With `repair`, unfinished files are removed and damaged checkpoints renamed.

    Raises:
        UsageError: the checkpoint belongs to another run or another version.
    """
    try:
        checkpoint = saved.read_newest(folder, _report_damage, repair)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if checkpoint is not None and identity is not None:
        known, _ = unpack(checkpoint)
        differences = describe_differences(known, identity)
        if differences:
            raise UsageError(
                f"{checkpoint.path} is a checkpoint of another run: {'; '.join(differences)}. Move it back to the run "
                f"from which it was copied, or remove it."
            )
    return checkpoint


def read_step(folder: pathlib.Path, step: int) -> saved.Checkpoint:
    """Return the checkpoint of a step that the chief has chosen. Raises RunError if it is missing."""
    if not checkpoint_path(folder, step).is_dir():
        raise RunError(
            f"the checkpoint of step {step}, from which the chief resumes, is missing in {folder}. --out must be a "
            f"folder that all machines share."
        )
    return saved.read(folder, step)


def pack(task: Task, window: Any = None) -> str:
    """Return the identity and the records of a run, and its updates since the last record, as text."""
    return json.dumps({"identity": task.identity, "records": task.run.records, "window": window})


def unpack(checkpoint: saved.Checkpoint) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the identity and the records of the run of a checkpoint."""
    values = json.loads(checkpoint.texts.get(RUN, "{}"))
    return values.get("identity") or {"its run": "unknown"}, values.get("records") or []


def load(checkpoint: saved.Checkpoint, model: keras.Model, optimizer: bool = False) -> None:
    """Assign the values of a checkpoint to a model. Raises UsageError if it has other variables."""
    try:
        checkpoint.load_into(model, optimizer)
    except ValueError as error:
        raise UsageError(
            f"{checkpoint.path} is not a checkpoint of this network and optimizer. Remove it if it was copied from "
            f"another run; otherwise start again with another --out."
        ) from error


def restore_weights(
    folder: str | os.PathLike, model: keras.Model, identity: Mapping[str, Any] | None = None
) -> int | None:
    """Restore a model's weights from the newest intact checkpoint of a run. Returns its step, or None."""
    checkpoint = read(folder, identity)
    if checkpoint is not None:
        load(checkpoint, model)
    return None if checkpoint is None else checkpoint.step


def save_best(task: Task, step: int, model: keras.Model) -> None:
    """Save the weights in place of the best ones so far. Raises RunError if they cannot be written."""
    folder = task.run.checkpoints_path
    with explain_write_errors(folder):
        saved.save(folder / BEST, step, model, {RUN: json.dumps({"identity": task.identity})})
    # A run that falls back to an earlier checkpoint may have left later ones.
    remove_steps(folder / BEST, {*list_steps(folder / BEST)} - {step})


@contextlib.contextmanager
def explain_write_errors(folder: pathlib.Path) -> Iterator[None]:
    """Raise RunError in place of the error of a checkpoint that could not be written."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and str(folder) not in str(error.filename):
            raise
        raise RunError(
            f"a checkpoint could not be saved in {folder}: {error.strerror or error}.",
            f"{describe_newest(folder)} {REMEDY}, then run the same command again.",
        ) from error


def _report_damage(path, damage):
    if (path / "checkpoint.index").exists():
        raise UsageError(
            f"{path} was written by an earlier version of this program. The last one that reads it is commit "
            f"{LAST_COMMIT}. Use that version, or start again with another --out."
        )
    print_message(f"checkpoint {path} is damaged ({damage}): falling back to the previous one")
