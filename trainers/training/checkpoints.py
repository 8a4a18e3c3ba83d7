"""Checkpoints of a run: a `tf.train.Checkpoint`, the records so far and the identity of the run.

`idmatters_tf.checkpointing` contains the format of the folders.

Training does not wait for the disk. `tf.train.Checkpoint` first writes its files into TensorFlow's in-memory file
system (`ram://`), and a thread copies them to the disk while training continues. For all strategies, the files are
bitwise identical to those of a checkpoint written directly to the disk, and only public functions are called. The
method requires memory for one more copy of the weights and the optimizer. TensorFlow's
`CheckpointOptions(experimental_enable_async_checkpoint=True)` cannot be used, because `Checkpoint.sync` does not raise
the error of the last write.
"""

import contextlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from idmatters_tf._background import BackgroundWriter
from idmatters_tf.checkpointing import (
    check_held,
    checkpoint_path,
    describe_newest,
    describe_other_run,
    find_newest_intact,
    list_steps,
    remove_steps,
    remove_unfinished,
    saving,
)
from trainers.cli.arguments import RunError, UsageError
from trainers.cli.reading import read_json
from trainers.run.records import encode, read
from trainers.training.version_0_1 import upgrade
from trainers.training.writing import FIX, why_not_written

RECORDS = "metrics.jsonl"
# Subfolder of the weights with the lowest test error.
BEST = "best"
# File in each checkpoint that identifies its run; earlier versions did not write it.
IDENTITY = "run.json"
_PREFIX = "checkpoint"
_INDEX = f"{_PREFIX}.index"
# Parameter servers send the variables to this process, where the in-memory file system is.
_HERE = tf.train.CheckpointOptions(experimental_io_device="/device:CPU:0")


class Checkpoints:
    """Checkpoints of a run.

    A context manager: on exit it waits for the last write, and raises its error unless the block has raised another
    one.

    Args:
        folder: folder of the checkpoints, created with the first one.
        keep: number of checkpoints to keep.
        model: model whose best weights are kept.
        identity: JSON values by name that identify the run, see `trainers.training.recorded.identity`; None: any run.
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
        self._writer = BackgroundWriter()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            self.wait()
        except Exception as unsaved:
            if error is None:
                raise
            error.add_note(str(unsaved))

    def wait(self) -> None:
        """Wait for the last write and raise its error, see `save`."""
        self._writer.wait()

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, in ascending order."""
        return list_steps(self.folder)

    def save(self, step: int, records: Sequence[dict[str, Any]] = ()) -> None:
        """Copy the values to memory, then write a checkpoint and remove the oldest ones in the background.

        The function waits for the previous write first.

        Args:
            step: number of updates made.
            records: records of the run so far, saved with the weights.

        Raises:
            RunError: the checkpoint could not be written. No incomplete files are left, and earlier checkpoints are
                unchanged. The next call of `save`, `save_best` or `wait` raises the error.
        """
        texts = {RECORDS: encode(records)}
        self._save(
            self.folder, step, self._checkpoint, texts, lambda: remove_steps(self.folder, self.steps()[: -self.keep])
        )

    def save_best(self, step: int) -> None:
        """Save the weights in place of the best ones so far. Raises RunError as `save` does."""

        def remove_others():
            # A run that falls back to an earlier checkpoint may have left later ones.
            remove_steps(self.folder / BEST, {*list_steps(self.folder / BEST)} - {step})

        self._save(self.folder / BEST, step, self._weights, {}, remove_others)

    def _save(self, folder, step, checkpoint, texts, remove_others):
        if self.identity is not None:
            texts = {**texts, IDENTITY: json.dumps(self.identity)}
        # Wait before copying: there is one copy at a time.
        self.wait()
        memory = f"ram://checkpoint-{id(self)}"
        with self._explain_errors(folder, step):
            checkpoint.write(f"{memory}/{_PREFIX}", options=_HERE)

        def write():
            try:
                with self._explain_errors(folder, step), saving(folder, step) as beside:
                    for name in tf.io.gfile.listdir(memory):
                        tf.io.gfile.copy(f"{memory}/{name}", str(beside / name))
                    for name, text in texts.items():
                        (beside / name).write_text(text, encoding="utf-8")
            finally:
                tf.io.gfile.rmtree(memory)
            remove_others()

        self._writer.submit(write)

    @contextlib.contextmanager
    def _explain_errors(self, folder: pathlib.Path, step: int) -> Iterator[None]:
        """Raise RunError in place of an error that prevents a checkpoint from being saved."""
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            check_held(folder)
            reason, remedy = why_not_written(error, folder) or (str(error), FIX)
            raise RunError(
                f"the checkpoint of step {step} could not be saved in {folder}: {reason}.",
                f"{describe_newest(self.folder)} {remedy} and run the same command again.",
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

    def records(self, step: int) -> list[dict[str, Any]] | None:
        """Return the records saved with a checkpoint; None for a checkpoint of an earlier version without records."""
        path = checkpoint_path(self.folder, step) / RECORDS
        return read(path, print) if path.is_file() else None

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
    if identity is None or not (path / IDENTITY).is_file():
        return
    try:
        recorded = read_json(path / IDENTITY)
        saved = {name: value for name, value in upgrade(recorded).items() if name in recorded}
    except (ValueError, TypeError, AttributeError):
        saved = {IDENTITY: "unreadable"}
    error = describe_other_run(path, saved, identity)
    if error is not None:
        raise UsageError(f"{error} Move it back to the run from which it was copied, or remove it.")


def _read(checkpoint, path):
    """Restore an intact checkpoint. Raises UsageError if it does not match the network and the optimizer."""
    try:
        return checkpoint.read(str(path / _PREFIX)).assert_existing_objects_matched()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        raise UsageError(
            f"{path} is not a checkpoint of this network and optimizer. Remove it if it was copied from another run; "
            f"otherwise start again with another --out."
        ) from error
