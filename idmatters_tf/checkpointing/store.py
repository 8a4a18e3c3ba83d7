"""Folders of checkpoints.

A checkpoint is a folder `step-00001000` with arbitrary files and a manifest of their sizes and CRC-32 sums. It
receives its name when it is complete, so that a kill at any moment leaves the earlier checkpoints unchanged. Later
damage is detected by the sums, and the previous checkpoint is used.
"""

import contextlib
import os
import pathlib
import re
import time
from collections.abc import Callable, Generator, Iterable

from idmatters_tf.checkpointing.files import (
    MANIFEST,
    fingerprint,
    read_manifest,
    remove,
    remove_unfinished,
    replacing,
    write_manifest,
)
from idmatters_tf.checkpointing.locks import check_held

_NAME = re.compile("step-([0-9]{8,18})")


class OtherRun(ValueError):
    """A checkpoint belongs to another run, another model or another version of this package.

    Attributes:
        reason: path of the checkpoint and the differences.
        exit_code: exit code of a program that ends with this error.
    """

    exit_code = 2

    def __init__(self, path: pathlib.Path, mismatch: str, remedy: str):
        self.reason = f"{path} {mismatch}."
        super().__init__(f"{self.reason} {remedy}")


def checkpoint_path(folder: str | os.PathLike[str], step: int) -> pathlib.Path:
    """Return the path of the checkpoint of a step in the folder of checkpoints."""
    return pathlib.Path(folder) / f"step-{step:08d}"


def list_steps(folder: str | os.PathLike[str]) -> list[int]:
    """Return the steps of all checkpoints in a folder in ascending order, including damaged ones."""
    matches = [_NAME.fullmatch(path.name) for path in pathlib.Path(folder).glob("step-*")]
    return sorted(int(match[1]) for match in matches if match)


def describe_newest(folder: str | os.PathLike[str]) -> str:
    """Return a sentence about the newest checkpoint in a folder for error messages."""
    steps = list_steps(folder)
    return f"The last good checkpoint is that of step {steps[-1]}." if steps else "There is no checkpoint yet."


@contextlib.contextmanager
def saving(folder: str | os.PathLike[str], step: int) -> Generator[pathlib.Path]:
    """Yield an empty folder for the files of a checkpoint, which receives its name after the block has succeeded.

    Args:
        folder: folder of the checkpoints, which is created if it does not exist.
        step: number of completed training steps. A checkpoint of the same step is replaced. A file or folder of this
            name without a manifest is renamed.

    Raises:
        FolderLost: this process has lost the lock of the folder.
        OSError: the checkpoint could not be written. Unfinished files are removed, and earlier checkpoints are
            unchanged.
    """
    path = checkpoint_path(folder, step)
    check_held(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path) and not (path / MANIFEST).is_file():
        _set_aside(path)
    with replacing(path, folder=True) as beside:
        beside.mkdir()
        yield beside
        write_manifest(beside, step=step)


def remove_steps(folder: str | os.PathLike[str], steps: Iterable[int]) -> None:
    """Remove the checkpoints of steps. Files and folders without a manifest are kept, except for empty folders."""
    for path in (checkpoint_path(folder, step) for step in steps):
        if (path / MANIFEST).is_file():
            remove(path)
        else:
            with contextlib.suppress(OSError):
                path.rmdir()


def find_newest_intact(
    folder: str | os.PathLike[str],
    required: str,
    on_damage: Callable[[pathlib.Path, str], object],
    repair: bool = False,
    accept: Callable[[int], bool] = lambda step: True,
) -> int | None:
    """Return the step of the newest intact checkpoint, or None.

    Args:
        folder: folder of the checkpoints.
        required: name of a file that every checkpoint contains.
        on_damage: called with the path of each newer damaged checkpoint and a description of the damage.
        repair: if True, remove unfinished files and rename damaged checkpoints, since the resumed run will save their
            steps again. The caller must be the only process that writes to the folder.
        accept: returns False for the step of an intact checkpoint that is not used.
    """
    if repair:
        remove_unfinished(folder)
    for step in reversed(list_steps(folder)):
        path = checkpoint_path(folder, step)
        damage = find_damage(path, required)
        if damage is None:
            if accept(step):
                return step
            continue
        on_damage(path, damage)
        if repair:
            _set_aside(path)
    return None


def _set_aside(path: pathlib.Path) -> None:
    os.rename(path, path.with_name(f"damaged-{path.name}-{time.time_ns()}"))


def find_damage(path: pathlib.Path, required: str) -> str | None:
    """Return a description of the damage of a checkpoint, which contains the file `required`, or None."""
    try:
        manifest = read_manifest(path)
        if path != checkpoint_path(path.parent, manifest["step"]):
            return f"it belongs to step {manifest['step']}"
        for name in dict.fromkeys([required, *manifest["files"]]):
            saved = manifest["files"][name]
            # Earlier versions saved SHA-256 sums.
            [checksum] = saved.keys() - {"bytes"}
            if fingerprint(path / name, checksum) != saved:
                return f"{name} has another checksum"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{MANIFEST} or a file in it is missing or not readable: {error}"
    return None
