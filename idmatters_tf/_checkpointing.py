"""Atomic checkpoints, which are complete or absent after a kill at any moment.

A checkpoint is a folder `step-00001000` with arbitrary files and a manifest of their sizes and SHA-256 sums. It
receives its name when it is complete, so that a kill at any moment leaves the earlier checkpoints unchanged. Later
damage is detected by the sums, and the previous checkpoint is used.

The caller determines the content of the files: `trainers.training.checkpoints` writes TensorFlow checkpoints,
`idmatters_tf.callbacks.ExactResume` arrays. Neither Keras nor TensorFlow is imported.
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
    find_mode,
    fingerprint,
    read_manifest,
    remove_own,
    write_manifest,
)
from idmatters_tf._replacing import replacing

CHECKPOINT_PREFIX = "step-"
_CHECKPOINT = re.compile(CHECKPOINT_PREFIX + "([0-9]{8,18})")


def checkpoint_name(step: int) -> str:
    """Return the name of the checkpoint of a step."""
    return f"{CHECKPOINT_PREFIX}{step:08d}"


def checkpoint_path(folder: str | os.PathLike, step: int) -> pathlib.Path:
    """Return the path of the checkpoint of a step in the folder of checkpoints."""
    return pathlib.Path(folder) / checkpoint_name(step)


def list_steps(folder: str | os.PathLike) -> list[int]:
    """Return the steps of all checkpoints in a folder in ascending order, including damaged ones."""
    names = [path.name for path in pathlib.Path(folder).glob(f"{CHECKPOINT_PREFIX}*")]
    steps = [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    return sorted(step for step in steps if checkpoint_name(step) in names)


def describe_newest(folder: str | os.PathLike) -> str:
    """Return a sentence about the newest checkpoint in a folder for error messages."""
    steps = list_steps(folder)
    return f"The last good checkpoint is that of step {steps[-1]}." if steps else "There is no checkpoint yet."


@contextlib.contextmanager
def saving(folder: str | os.PathLike, step: int) -> Iterator[pathlib.Path]:
    """Yield an empty folder for the files of a checkpoint, which receives its name after the block has succeeded.

    Args:
        folder: folder of the checkpoints, which is created if it does not exist.
        step: number of completed training steps. A checkpoint of the same step is replaced. Another object of this
            name is renamed.

    Raises:
        FolderLost: this process has lost the lock of the folder.
        OSError: the checkpoint could not be written. Unfinished files are removed, and earlier checkpoints are
            unchanged.
    """
    path = checkpoint_path(folder, step)
    check_held(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        check_replaceable(path, folder=True)
    except PathOccupied as error:
        rename_damaged(error.path)
    with replacing(path, folder=True) as beside:
        beside.mkdir()
        yield beside
        write_manifest(beside, step=step)


def remove_oldest(folder: str | os.PathLike, keep: int) -> None:
    """Remove all but the `keep` newest checkpoints. Checkpoints with foreign files are kept."""
    for old in list_steps(folder)[:-keep]:
        remove(folder, old)


def remove(folder: str | os.PathLike, step: int) -> None:
    """Remove the checkpoint of a step, unless it contains foreign files."""
    path = checkpoint_path(folder, step)
    with contextlib.suppress(PathOccupied):
        check_replaceable(path, folder=True)
        remove_own(path)


def find_newest_intact(
    folder: str | os.PathLike, required: str, on_damage: Callable[[pathlib.Path, str], object]
) -> int | None:
    """Return the step of the newest intact checkpoint, or None.

    Args:
        folder: folder of the checkpoints.
        required: name of a file that every checkpoint contains.
        on_damage: called with the path of each newer damaged checkpoint and a description of the damage.
    """
    for step in reversed(list_steps(folder)):
        path = checkpoint_path(folder, step)
        what = _damage(path, required)
        if what is None:
            return step
        on_damage(path, what)
    return None


def rename_damaged(path: pathlib.Path) -> None:
    """Rename a damaged checkpoint, since the resumed run will save its step again."""
    number = os.getpid()
    while find_mode(aside := path.with_name(f"damaged-{path.name}-{number}")) is not None:
        number += 1
    os.rename(path, aside)


def _damage(path, required):
    """Return a description of the damage of a checkpoint, or None."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return "it is not a folder"
        for entry in os.scandir(path):
            # TensorFlow would open the file, and a named pipe would block forever.
            if not entry.is_file(follow_symlinks=False):
                return f"{entry.name} is not a regular file"
        manifest = read_manifest(path)
        if path.name != checkpoint_name(manifest["step"]):
            return f"it belongs to step {manifest['step']}"
        if required not in manifest["files"]:
            return f"{MANIFEST} is not readable"
        there = os.listdir(path)
        for name, expected in manifest["files"].items():
            # Only files inside of the folder are opened.
            if name not in there:
                return f"{name} is missing"
            if fingerprint(path / name) != expected:
                return f"{name} has another checksum"
    except FileNotFoundError as error:
        return f"{pathlib.Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError):
        return f"{MANIFEST} is not readable"
    except (OSError, PathOccupied) as error:
        return str(error)
    return None
