"""Files and folders that are there entirely or not at all, whenever the process is killed."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator

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
