"""The checkpoints of a run: `tf.train.Checkpoint`s, the records so far and the identity of the run.

See `idmatters_tf._checkpointing` for how they are written and read.

Training does not wait for the disk. `tf.train.Checkpoint` writes its files into TensorFlow's file system in memory
(`ram://`) first, and a thread copies them to the disk while training goes on. The files have the same bytes as those of
a checkpoint that is written to the disk directly, for all strategies, and only public functions are called. This takes
the memory of one more copy of the weights and the optimizer. TensorFlow's own
`CheckpointOptions(experimental_enable_async_checkpoint=True)` cannot be used: `Checkpoint.sync` does not raise the
error of the last write.
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
from idmatters_tf._checkpointing import (
    checkpoint_path,
    describe_newest,
    newest_intact,
    put_aside,
    remove,
    remove_oldest,
    saved_steps,
    saving,
)
from idmatters_tf._locking import check_held
from idmatters_tf._replacing import remove_unfinished
from idmatters_tf._run_description import other_run
from trainers.cli.arguments import RunError, UsageError
from trainers.cli.reading import read_json
from trainers.run.records import encode, read
from trainers.training.version_0_1 import upgraded
from trainers.training.writing import MEND, why_not_written

RECORDS = "metrics.jsonl"
# In the folder of checkpoints, that of the weights with the lowest test error.
BEST = "best"
# In each checkpoint, what identifies its run; missing in those of earlier versions.
IDENTITY = "run.json"
_PREFIX = "checkpoint"
_INDEX = f"{_PREFIX}.index"
# Parameter servers send the variables to this process, which has the memory that is copied from.
_HERE = tf.train.CheckpointOptions(experimental_io_device="/device:CPU:0")


class Checkpoints:
    """The checkpoints of a run.

    A context manager. At the end of the block no write is in flight, and the error of the last one is raised unless the
    block has raised another one.

    Args:
        folder: where they are; created when the first one is saved.
        keep: how many are kept.
        model: of which the best weights are kept.
        identity: values by name, as JSON, that identify the run, see `trainers.training.recorded.identity`; None: of no
            particular run.
        objects: what else is saved, as for `tf.train.Checkpoint`: the optimizer, the step.
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
        """Wait until no write is in flight. Raises the error of the write, see `save`."""
        self._writer.wait()

    def steps(self) -> list[int]:
        """The steps of the checkpoints there are, oldest first."""
        return saved_steps(self.folder)

    def save(self, step: int, records: Sequence[dict[str, Any]] = ()) -> None:
        """Copy the values to memory, then write a checkpoint and remove the oldest ones in the background.

        The write before is waited for.

        Args:
            step: the number of updates made.
            records: those of the run so far, which are kept with the weights.

        Raises:
            RunError: it could not be written; nothing half-written is left, and the earlier ones are as they were.
                Raised by the next `save`, `save_best` or `wait`.
        """
        self._save(self.folder, step, self._checkpoint, {RECORDS: encode(records)}, self._remove_oldest)

    def save_best(self, step: int) -> None:
        """Save the weights alone, in place of those that were the best so far. Raises RunError as `save` does."""

        def remove_others():
            for other in saved_steps(self.folder / BEST):
                # A run that goes back to an earlier checkpoint may have left a later one.
                if other != step:
                    remove(self.folder / BEST, other)

        self._save(self.folder / BEST, step, self._weights, {}, remove_others)

    def _remove_oldest(self):
        remove_oldest(self.folder, self.keep)

    def _save(self, folder, step, checkpoint, texts, remove_others):
        if self.identity is not None:
            texts = {**texts, IDENTITY: json.dumps(self.identity)}
        # Before the copy is made: there is one copy at a time.
        self.wait()
        memory = f"ram://checkpoint-{id(self)}"
        with self._explaining(folder, step):
            checkpoint.write(f"{memory}/{_PREFIX}", options=_HERE)

        def write():
            try:
                with self._explaining(folder, step), saving(folder, step) as beside:
                    for name in tf.io.gfile.listdir(memory):
                        tf.io.gfile.copy(f"{memory}/{name}", str(beside / name))
                    for name, text in texts.items():
                        (beside / name).write_text(text, encoding="utf-8")
            finally:
                tf.io.gfile.rmtree(memory)
            remove_others()

        self._writer.submit(write)

    @contextlib.contextmanager
    def _explaining(self, folder: pathlib.Path, step: int) -> Iterator[None]:
        """Raise RunError in place of an error that prevents a checkpoint from being saved."""
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            check_held(folder)
            reason, remedy = why_not_written(error, folder) or (str(error), MEND)
            raise RunError(
                f"the checkpoint of step {step} could not be saved in {folder}: {reason}.",
                f"{describe_newest(self.folder)} {remedy} and give the same command again.",
            ) from error

    def restore(self, report: Callable[[str], object]) -> int | None:
        """Restores the newest intact checkpoint.

        Args:
            report: called with a sentence for each damaged one that is passed over.

        Returns:
            Its step, or None where there is none.

        Raises:
            UsageError: it is a checkpoint of another run, or the one with the best weights is.
        """
        for folder in (self.folder, self.folder / BEST):
            remove_unfinished(folder)

        def on_damage(path, damage):
            report(f"checkpoint {path} is damaged ({damage}): going back to the one before")
            put_aside(path)

        step = newest_intact(self.folder, _INDEX, on_damage)
        # A damaged one is reported when it is needed.
        best = newest_intact(self.folder / BEST, _INDEX, lambda *_: None)
        if best is not None:
            check_identity(checkpoint_path(self.folder / BEST, best), self.identity)
        if step is not None:
            check_identity(checkpoint_path(self.folder, step), self.identity)
            _read(self._checkpoint, checkpoint_path(self.folder, step))
        return step

    def records(self, step: int) -> list[dict[str, Any]] | None:
        """The records that were saved with a checkpoint; None where it is one of an earlier version, without them."""
        path = checkpoint_path(self.folder, step) / RECORDS
        return read(path, print) if path.is_file() else None

    def restore_step(self, step: int) -> None:
        """Restores the checkpoint of a step that another task has chosen, and changes nothing in the folder."""
        path = checkpoint_path(self.folder, step)
        if not path.is_dir():
            raise RunError(
                f"the checkpoint of step {step}, from which the chief goes on, is not here in {self.folder}. --out "
                f"must be a folder that all machines share."
            )
        _read(self._checkpoint, path)


def restore_weights(
    folder: str | os.PathLike,
    model: keras.Model,
    report: Callable[[str], object],
    identity: Mapping[str, Any] | None = None,
) -> int | None:
    """Restores a model's weights alone from the newest intact checkpoint of a run. Returns its step, or None.

    With `identity`, raises UsageError where the checkpoint is one of another run.
    """
    step = newest_intact(
        folder, _INDEX, lambda path, damage: report(f"checkpoint {path} is damaged ({damage}): using the one before")
    )
    if step is not None:
        check_identity(checkpoint_path(folder, step), identity)
        _read(tf.train.Checkpoint(model=model), checkpoint_path(folder, step)).expect_partial()
    return step


def check_identity(path: pathlib.Path, identity: Mapping[str, Any] | None) -> None:
    """Raise UsageError if an intact checkpoint is one of another run. The identity None accepts every checkpoint."""
    if identity is None or not (path / IDENTITY).is_file():
        return
    try:
        recorded = read_json(path / IDENTITY)
        saved = {name: value for name, value in upgraded(recorded).items() if name in recorded}
    except (ValueError, TypeError, AttributeError):
        saved = {IDENTITY: "unreadable"}
    error = other_run(path, saved, identity)
    if error is not None:
        raise UsageError(f"{error} Move it back to the run that it was copied from, or remove it.")


def _read(checkpoint, path):
    """Restores an intact checkpoint. Raises UsageError where it is one of something else."""
    try:
        return checkpoint.read(str(path / _PREFIX)).assert_existing_objects_matched()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        raise UsageError(
            f"{path} is no checkpoint of this network and optimizer. If it was copied here from another run, remove "
            f"it; else start again with another --out."
        ) from error
