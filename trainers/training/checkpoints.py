"""Checkpoints that are there entirely or not at all.

Each is a folder `step-00001000` with a `tf.train.Checkpoint` and a manifest of its files' sizes and SHA-256 sums. It
appears under its name only when it is complete, so that a kill at any moment leaves the earlier ones as they were.
Later damage is detected by the sums, and the previous checkpoint is used.
"""

import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from trainers.cli.arguments import RunError
from trainers.run.files import remove_unfinished, replacing

_PREFIX = "step-"


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

    def save(self, step: int) -> None:
        """Saves a checkpoint and drops the oldest ones.

        Raises:
            RunError: it could not be written; nothing half-written is left, and the earlier ones are as they were.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(_path(self.folder, step)) as beside:
                beside.mkdir()
                self._checkpoint.write(str(beside / "checkpoint"))
                files = {path.name: _fingerprint(path) for path in sorted(beside.iterdir())}
                manifest = json.dumps({"step": step, "files": files}, indent=2)
                (beside / "manifest.json").write_text(manifest, encoding="utf-8")
        except (OSError, tf.errors.OpError) as error:
            raise RunError(
                f"the checkpoint of step {step} could not be saved in {self.folder}: {_reason(error)}. "
                f"{self.last_good_sentence()} Make room and give the same command again."
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
            status = self._checkpoint.read(str(_path(self.folder, step) / "checkpoint"))
            status.assert_existing_objects_matched()
        return step

    def restore_step(self, step: int) -> None:
        """Restores the checkpoint of a step that another task has chosen, and changes nothing in the folder."""
        try:
            status = self._checkpoint.read(str(_path(self.folder, step) / "checkpoint"))
        except tf.errors.OpError as error:
            raise RunError(
                f"the checkpoint of step {step}, from which the chief goes on, cannot be read here in {self.folder}: "
                f"{_reason(error)}. --out must be a folder that all machines share."
            ) from error
        status.assert_existing_objects_matched()


def saved_steps(folder: str | os.PathLike) -> list[int]:
    """The steps of the checkpoints in a folder, oldest first, damaged ones included."""
    return sorted(int(path.name.removeprefix(_PREFIX)) for path in pathlib.Path(folder).glob(f"{_PREFIX}*"))


def restore_weights(folder: str | os.PathLike, model: keras.Model, report: Callable[[str], object]) -> int | None:
    """Restores a model's weights alone from the newest intact checkpoint of a run. Returns its step, or None."""
    step = _newest_intact(
        folder, lambda path, damage: report(f"checkpoint {path} is damaged ({damage}): using the one before")
    )
    if step is not None:
        status = tf.train.Checkpoint(model=model).read(str(_path(folder, step) / "checkpoint"))
        status.assert_existing_objects_matched().expect_partial()
    return step


def _newest_intact(folder, on_damage):
    """The step of the newest intact checkpoint, or None; `on_damage(path, what)` is called for those passed over."""
    for step in reversed(saved_steps(folder)):
        damage = _damage(_path(folder, step))
        if damage is None:
            return step
        on_damage(_path(folder, step), damage)
    return None


def _path(folder, step):
    return pathlib.Path(folder) / f"{_PREFIX}{step:08d}"


def _damage(path):
    """What is wrong with a checkpoint, or None."""
    try:
        files = json.loads((path / "manifest.json").read_text(encoding="utf-8"))["files"]
        for name, expected in files.items():
            if _fingerprint(path / name) != expected:
                return f"{name} is not what was written"
    except FileNotFoundError as error:
        return f"{pathlib.Path(error.filename).name} is missing"
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
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
