"""Checkpoints that are there entirely or not at all.

Each is a folder `step-00001000` with a `tf.train.Checkpoint` and a manifest of its files' sizes and SHA-256 sums. It
appears under its name only when it is complete, so that a kill at any moment leaves the earlier ones as they were.
Later damage is detected by the sums, and the previous checkpoint is used.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from trainers.cli.arguments import RunError, UsageError
from trainers.run.files import remove_unfinished, replacing
from trainers.run.folder import checkpoint_name, saved_steps
from trainers.run.records import encode, read

RECORDS = "metrics.jsonl"


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: where they are; created when the first one is saved.
        keep: how many are kept.
        objects: what is saved, as for `tf.train.Checkpoint`: the model, the optimizer, the step.
    """

    def __init__(self, folder: str | os.PathLike, keep: int = 3, **objects: Any):
        self.folder = pathlib.Path(folder)
        self.keep = keep
        self._checkpoint = tf.train.Checkpoint(**objects)

    def steps(self) -> list[int]:
        """The steps of the checkpoints there are, oldest first."""
        return saved_steps(self.folder)

    def save(self, step: int, records: Sequence[dict[str, Any]] = ()) -> None:
        """Saves a checkpoint and drops the oldest ones.

        Args:
            step: the number of updates made.
            records: those of the run so far, which are kept with the weights.

        Raises:
            RunError: it could not be written; nothing half-written is left, and the earlier ones are as they were.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(_path(self.folder, step)) as beside:
                beside.mkdir()
                self._checkpoint.write(str(beside / "checkpoint"))
                (beside / RECORDS).write_text(encode(records), encoding="utf-8")
                files = {path.name: _fingerprint(path) for path in sorted(beside.iterdir())}
                manifest = json.dumps({"step": step, "files": files}, indent=2)
                (beside / "manifest.json").write_text(manifest, encoding="utf-8")
        except (OSError, tf.errors.OpError) as error:
            reason = _reason(error)
            remedy = "Make room" if re.search("space|quota|too large", reason) else "Mend this"
            raise RunError(
                f"the checkpoint of step {step} could not be saved in {self.folder}: {reason}. "
                f"{self.last_good_sentence()} {remedy} and give the same command again."
            ) from error
        for old in self.steps()[: -self.keep]:
            shutil.rmtree(_path(self.folder, old), ignore_errors=True)

    def last_good_sentence(self) -> str:
        """Says which checkpoint is the newest."""
        steps = self.steps()
        return f"The last good checkpoint is that of step {steps[-1]}." if steps else "There is no checkpoint yet."

    def restore(self, report: Callable[[str], object]) -> int | None:
        """Restores the newest intact checkpoint.

        Args:
            report: called with a sentence for each damaged one that is passed over.

        Returns:
            Its step, or None where there is none.
        """
        remove_unfinished(self.folder)

        def put_aside(path, damage):
            report(f"checkpoint {path} is damaged ({damage}): going back to the one before")
            # Out of the way, but not lost: the step will be reached and saved again.
            os.replace(path, path.with_name(f"damaged-{path.name}-{os.getpid()}"))

        step = _newest_intact(self.folder, put_aside)
        if step is not None:
            _read(self._checkpoint, _path(self.folder, step))
        return step

    def records(self, step: int) -> list[dict[str, Any]] | None:
        """The records that were saved with a checkpoint; None where it is one of an earlier version, without them."""
        path = _path(self.folder, step) / RECORDS
        return read(path, print) if path.is_file() else None

    def restore_step(self, step: int) -> None:
        """Restores the checkpoint of a step that another task has chosen, and changes nothing in the folder."""
        path = _path(self.folder, step)
        if not path.is_dir():
            raise RunError(
                f"the checkpoint of step {step}, from which the chief goes on, is not here in {self.folder}. --out "
                f"must be a folder that all machines share."
            )
        _read(self._checkpoint, path)


def restore_weights(folder: str | os.PathLike, model: keras.Model, report: Callable[[str], object]) -> int | None:
    """Restores a model's weights alone from the newest intact checkpoint of a run. Returns its step, or None."""
    step = _newest_intact(
        folder, lambda path, damage: report(f"checkpoint {path} is damaged ({damage}): using the one before")
    )
    if step is not None:
        _read(tf.train.Checkpoint(model=model), _path(folder, step)).expect_partial()
    return step


def _read(checkpoint, path):
    """Restores an intact checkpoint. Raises UsageError where it is one of something else."""
    try:
        return checkpoint.read(str(path / "checkpoint")).assert_existing_objects_matched()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        raise UsageError(
            f"{path} is no checkpoint of this network and optimizer. If it was copied here from another run, remove "
            f"it; else start again with another --out."
        ) from error


def _newest_intact(folder, on_damage):
    """The step of the newest intact checkpoint, or None; `on_damage(path, what)` is called for those passed over."""
    for step in reversed(saved_steps(folder)):
        damage = _damage(_path(folder, step))
        if damage is None:
            return step
        on_damage(_path(folder, step), damage)
    return None


def _path(folder, step):
    return pathlib.Path(folder) / checkpoint_name(step)


def _damage(path):
    """What is wrong with a checkpoint, or None."""
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        files = manifest["files"]
        if path.name != checkpoint_name(manifest["step"]):
            return f"it is that of step {manifest['step']}"
        if "checkpoint.index" not in files:
            return "manifest.json is not readable"
        for name, expected in files.items():
            if _fingerprint(path / name) != expected:
                return f"{name} is not what was written"
    except FileNotFoundError as error:
        return f"{pathlib.Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "manifest.json is not readable"
    except OSError as error:
        return str(error)
    return None


def _fingerprint(path):
    with open(path, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _reason(error):
    if isinstance(error, OSError):
        return error.strerror or str(error)
    # TensorFlow puts the operation and the file around the system's own words.
    return error.message.strip().splitlines()[0].split(" [Op:")[0].rsplit("; ", 1)[-1]
