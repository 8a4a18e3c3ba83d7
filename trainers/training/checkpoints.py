"""Checkpoints of a run: a `tf.train.Checkpoint`, the records so far and the identity of the run.

`idmatters_tf.checkpointing` contains the format of the folders.
"""

import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from idmatters_tf.checkpointing import (
    check_held,
    checkpoint_path,
    describe_differences,
    describe_newest,
    find_newest_intact,
    list_steps,
    remove_steps,
    remove_unfinished,
    saving,
)
from trainers.cli.arguments import RunError, UsageError
from trainers.run.records import encode, read

RECORDS = "metrics.jsonl"
# Subfolder of the weights with the lowest test error.
BEST = "best"
# File in each checkpoint that identifies its run.
IDENTITY = "run.json"
# Errors of files that cannot be written.
WRITE_ERRORS = (OSError, tf.errors.OpError)
REMEDY = "Make sure that the disk is writable and not full"
_PREFIX = "checkpoint"
_INDEX = f"{_PREFIX}.index"
# Parameter servers send the variables to this process, which writes the files.
_HERE = tf.train.CheckpointOptions(experimental_io_device="/device:CPU:0")


class Checkpoints:
    """Checkpoints of a run.

    Args:
        folder: folder of the checkpoints, created with the first one.
        keep: number of checkpoints to keep.
        model: model whose best weights are kept.
        identity: JSON values by name that identify the run, see `trainers.training.program.Program.identity`; None: any
            run.
        objects: further objects to save, as for `tf.train.Checkpoint`: the optimizer, the step.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        keep: int = 3,
        *,
        model: keras.Model,
        identity: Mapping[str, Any] | None = None,
        **objects: Any,
    ):
        self.folder = pathlib.Path(folder)
        self.keep, self.identity = keep, identity
        self._checkpoint = tf.train.Checkpoint(model=model, **objects)
        self._weights = tf.train.Checkpoint(model=model)

    def save(self, step: int, records: Sequence[dict[str, Any]] = ()) -> None:
        """Write a checkpoint and remove the oldest ones.

        Args:
            step: number of updates made.
            records: records of the run so far, saved with the weights.

        Raises:
            RunError: the checkpoint could not be written. No incomplete files are left, and earlier checkpoints are
                unchanged.
        """
        self._save(self.folder, step, self._checkpoint, {RECORDS: encode(records)})
        remove_steps(self.folder, list_steps(self.folder)[: -self.keep])

    def save_best(self, step: int) -> None:
        """Save the weights in place of the best ones so far. Raises RunError as `save` does."""
        self._save(self.folder / BEST, step, self._weights, {})
        # A run that falls back to an earlier checkpoint may have left later ones.
        remove_steps(self.folder / BEST, {*list_steps(self.folder / BEST)} - {step})

    def _save(self, folder, step, checkpoint, texts):
        if self.identity is not None:
            texts = {**texts, IDENTITY: json.dumps(self.identity)}
        try:
            with saving(folder, step) as beside:
                checkpoint.write(str(beside / _PREFIX), options=_HERE)
                for name, text in texts.items():
                    (beside / name).write_text(text, encoding="utf-8")
        except WRITE_ERRORS as error:
            check_held(folder)
            raise RunError(
                f"the checkpoint of step {step} could not be saved in {folder}: {error}.",
                f"{describe_newest(self.folder)} {REMEDY}, then run the same command again.",
            ) from error

    def restore(self, report: Callable[[str], object]) -> int | None:
        """Restore the newest intact checkpoint.

        Args:
            report: called with a message about each damaged checkpoint.

        Returns:
            The step of the checkpoint, or None if there is none.

        Raises:
            UsageError: the checkpoint, or the one with the best weights, belongs to another run.
        """
        remove_unfinished(self.folder / BEST)
        step = find_newest_intact(
            self.folder,
            _INDEX,
            lambda path, damage: report(f"checkpoint {path} is damaged ({damage}): falling back to the previous one"),
            repair=True,
        )
        # Damaged best weights are reported when they are needed.
        best = find_newest_intact(self.folder / BEST, _INDEX, lambda *_: None)
        if best is not None:
            check_identity(checkpoint_path(self.folder / BEST, best), self.identity)
        if step is not None:
            check_identity(checkpoint_path(self.folder, step), self.identity)
            _read(self._checkpoint, checkpoint_path(self.folder, step))
        return step

    def records(self, step: int) -> list[dict[str, Any]]:
        """Return the records saved with a checkpoint."""
        return read(checkpoint_path(self.folder, step) / RECORDS, print)

    def restore_step(self, step: int) -> None:
        """Restore the checkpoint of a step that another task has chosen, without changing the folder."""
        path = checkpoint_path(self.folder, step)
        if not path.is_dir():
            raise RunError(
                f"the checkpoint of step {step}, from which the chief resumes, is missing in {self.folder}. --out must "
                f"be a folder that all machines share."
            )
        _read(self._checkpoint, path)


def restore_weights(
    folder: str | os.PathLike,
    model: keras.Model,
    report: Callable[[str], object],
    identity: Mapping[str, Any] | None = None,
) -> int | None:
    """Restore a model's weights from the newest intact checkpoint of a run. Returns its step, or None.

    With `identity`, raises UsageError if the checkpoint belongs to another run.
    """
    step = find_newest_intact(
        folder, _INDEX, lambda path, damage: report(f"checkpoint {path} is damaged ({damage}): using the previous one")
    )
    if step is not None:
        check_identity(checkpoint_path(folder, step), identity)
        _read(tf.train.Checkpoint(model=model), checkpoint_path(folder, step)).expect_partial()
    return step


def check_identity(path: pathlib.Path, identity: Mapping[str, Any] | None) -> None:
    """Raise UsageError if an intact checkpoint belongs to another run. The identity None accepts every checkpoint."""
    if identity is None:
        return
    try:
        saved = dict(json.loads((path / IDENTITY).read_bytes()))
    except (OSError, TypeError, ValueError):
        saved = {IDENTITY: "unreadable"}
    differences = describe_differences(saved, identity)
    if differences:
        raise UsageError(
            f"{path} is a checkpoint of another run: {'; '.join(differences)}. Move it back to the run from which it "
            f"was copied, or remove it."
        )


def _read(checkpoint, path):
    """Restore an intact checkpoint. Raises UsageError if it does not match the network and the optimizer."""
    try:
        return checkpoint.read(str(path / _PREFIX)).assert_existing_objects_matched()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        raise UsageError(
            f"{path} is not a checkpoint of this network and optimizer. Remove it if it was copied from another run; "
            f"otherwise start again with another --out."
        ) from error
