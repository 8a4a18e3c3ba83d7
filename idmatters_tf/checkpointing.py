"""Files, folders and checkpoints that are there entirely or not at all, whenever the process is killed.

A checkpoint is a folder `step-00001000` with any files in it and a manifest of their sizes and SHA-256 sums. It appears
under its name only when it is complete, so that a kill at any moment leaves the earlier ones as they were. Later damage
is detected by the sums, and the previous checkpoint is used.

What is in the files is the caller's: `trainers.training.checkpoints` writes TensorFlow's own checkpoints,
`idmatters_tf.callbacks.ExactResume` arrays. Neither Keras nor TensorFlow is imported here.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator

MANIFEST = "manifest.json"
CHECKPOINT_PREFIX = "step-"
_CHECKPOINT = re.compile(CHECKPOINT_PREFIX + "([0-9]{8,18})")
_UNFINISHED = ".writing-"


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yields a temporary path beside `path`, which takes the place of `path` once the block has succeeded.

    The block creates a file or a folder there; the temporary name ends like that of `path`, for libraries that choose
    a format by the suffix. Everything is flushed to disk before it is renamed, so that readers see what was there
    before or what is complete, and nothing is left behind when the block raises.

    Args:
        path: a file or folder, which may exist.

    Raises:
        OSError: it could not be written.
    """
    path = pathlib.Path(path)
    beside = path.with_name(f"{_UNFINISHED}{os.getpid()}-{path.name}")
    try:
        _remove(beside)
        yield beside
        _flush(beside)
        if path.is_dir():
            # A folder cannot be renamed onto one that holds files.
            shutil.rmtree(path)
        os.replace(beside, path)
        _sync(path.parent)
    finally:
        _remove(beside)


def write_atomically(path: str | os.PathLike, content: str | bytes) -> None:
    """Writes a file of text (UTF-8) or bytes, see `replacing`."""
    with replacing(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


def remove_unfinished(folder: str | os.PathLike) -> None:
    """Removes what processes that were killed while writing have left in a folder.

    To be called only by a process that alone writes there.
    """
    for path in pathlib.Path(folder).glob(f"{_UNFINISHED}*"):
        _remove(path)


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


@contextlib.contextmanager
def saving(folder: str | os.PathLike, step: int) -> Iterator[pathlib.Path]:
    """Yields an empty folder for the files of a step's checkpoint, which is complete once the block has succeeded.

    Args:
        folder: of the checkpoints; made where there is none.
        step: the number of updates made; a checkpoint of the same step is replaced.

    Raises:
        OSError: it could not be written; nothing half-written is left, and the earlier ones are as they were.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(checkpoint_path(folder, step)) as beside:
        beside.mkdir()
        yield beside
        files = {path.name: _fingerprint(path) for path in sorted(beside.iterdir())}
        manifest = json.dumps({"step": step, "files": files}, indent=2)
        (beside / MANIFEST).write_text(manifest, encoding="utf-8")


def remove_oldest(folder: str | os.PathLike, keep: int) -> None:
    """Removes all but the `keep` newest checkpoints."""
    for old in saved_steps(folder)[:-keep]:
        shutil.rmtree(checkpoint_path(folder, old), ignore_errors=True)


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
    os.replace(path, path.with_name(f"damaged-{path.name}-{os.getpid()}"))


def _damage(path, required):
    """What is wrong with a checkpoint, or None."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        if path.name != checkpoint_name(manifest["step"]):
            return f"it is that of step {manifest['step']}"
        if required not in files:
            return f"{MANIFEST} is not readable"
        for name, expected in files.items():
            if _fingerprint(path / name) != expected:
                return f"{name} is not what was written"
    except FileNotFoundError as error:
        return f"{pathlib.Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} is not readable"
    except OSError as error:
        return str(error)
    return None


def _fingerprint(path):
    with open(path, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _remove(path):
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _flush(path):
    if path.is_dir():
        for inner in path.iterdir():
            _flush(inner)
    _sync(path)


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
