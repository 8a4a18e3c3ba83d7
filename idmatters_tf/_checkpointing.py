"""Checkpoints that are there entirely or not at all, whenever the process is killed.

A checkpoint is a folder `step-00001000` with any files in it and a manifest of their sizes and SHA-256 sums. It appears
under its name only when it is complete, so that a kill at any moment leaves the earlier ones as they were. Later damage
is detected by the sums, and the previous checkpoint is used.

What is in the files is the caller's: `trainers.training.checkpoints` writes TensorFlow's own checkpoints,
`idmatters_tf.callbacks.ExactResume` arrays. Neither Keras nor TensorFlow is imported here.
"""

import contextlib
import os
import pathlib
import re
import stat
from collections.abc import Callable, Iterator

from idmatters_tf._locking import check_held
from idmatters_tf._ownership import (
    MANIFEST,
    PathOccupied,
    check_replaceable,
    fingerprint,
    mode_of,
    read_manifest,
    remove_own,
    write_manifest,
)
from idmatters_tf._replacing import replacing

CHECKPOINT_PREFIX = "step-"
_CHECKPOINT = re.compile(CHECKPOINT_PREFIX + "([0-9]{8,18})")


def checkpoint_name(step: int) -> str:
    """The name of a step's checkpoint in the folder of checkpoints."""
    return f"{CHECKPOINT_PREFIX}{step:08d}"


def checkpoint_path(folder: str | os.PathLike, step: int) -> pathlib.Path:
    """The folder of a step's checkpoint in the folder of checkpoints."""
    return pathlib.Path(folder) / checkpoint_name(step)


def saved_steps(folder: str | os.PathLike) -> list[int]:
    """The steps of the checkpoints in a folder, oldest first, damaged ones included."""
    names = [path.name for path in pathlib.Path(folder).glob(f"{CHECKPOINT_PREFIX}*")]
    steps = [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    return sorted(step for step in steps if checkpoint_name(step) in names)


def describe_newest(folder: str | os.PathLike) -> str:
    """Return a sentence that names the newest checkpoint in a folder, for error messages."""
    steps = saved_steps(folder)
    return f"The last good checkpoint is that of step {steps[-1]}." if steps else "There is no checkpoint yet."


@contextlib.contextmanager
def saving(folder: str | os.PathLike, step: int) -> Iterator[pathlib.Path]:
    """Yields an empty folder for the files of a step's checkpoint, which is complete once the block has succeeded.

    Args:
        folder: of the checkpoints; made where there is none.
        step: the number of updates made; a checkpoint of the same step is replaced, anything else of its name is put
            aside.

    Raises:
        FolderLost: the folder is in one whose lock this process has lost.
        OSError: it could not be written; nothing half-written is left, and the earlier ones are as they were.
    """
    path = checkpoint_path(folder, step)
    check_held(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        check_replaceable(path, folder=True)
    except PathOccupied as error:
        put_aside(error.path)
    with replacing(path, folder=True) as beside:
        beside.mkdir()
        yield beside
        write_manifest(beside, step=step)


def remove_oldest(folder: str | os.PathLike, keep: int) -> None:
    """Removes all but the `keep` newest checkpoints; one that holds other files as well is kept."""
    for old in saved_steps(folder)[:-keep]:
        remove(folder, old)


def remove(folder: str | os.PathLike, step: int) -> None:
    """Remove the checkpoint of a step, unless it holds other files as well."""
    path = checkpoint_path(folder, step)
    with contextlib.suppress(PathOccupied):
        check_replaceable(path, folder=True)
        remove_own(path)


def newest_intact(
    folder: str | os.PathLike, required: str, on_damage: Callable[[pathlib.Path, str], object]
) -> int | None:
    """The step of the newest checkpoint whose files are what was written, or None.

    Args:
        folder: of the checkpoints.
        required: the name of a file without which it is no checkpoint.
        on_damage: called with the path of each damaged one that is passed over, and what is wrong with it.
    """
    for step in reversed(saved_steps(folder)):
        path = checkpoint_path(folder, step)
        what = _damage(path, required)
        if what is None:
            return step
        on_damage(path, what)
    return None


def put_aside(path: pathlib.Path) -> None:
    """Moves a damaged checkpoint out of the way, without losing it: its step will be reached and saved again."""
    number = os.getpid()
    while mode_of(aside := path.with_name(f"damaged-{path.name}-{number}")) is not None:
        number += 1
    os.rename(path, aside)


def _damage(path, required):
    """Return what is wrong with a checkpoint, or None."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return "it is not a folder"
        for entry in os.scandir(path):
            # TensorFlow would open it, and a named pipe would block it for ever.
            if not entry.is_file(follow_symlinks=False):
                return f"{entry.name} is not a regular file"
        manifest = read_manifest(path)
        if path.name != checkpoint_name(manifest["step"]):
            return f"it is that of step {manifest['step']}"
        if required not in manifest["files"]:
            return f"{MANIFEST} is not readable"
        there = os.listdir(path)
        for name, expected in manifest["files"].items():
            # Only names inside of the folder are opened.
            if name not in there:
                return f"{name} is missing"
            if fingerprint(path / name) != expected:
                return f"{name} is not what was written"
    except FileNotFoundError as error:
        return f"{pathlib.Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError):
        return f"{MANIFEST} is not readable"
    except (OSError, PathOccupied) as error:
        return str(error)
    return None
