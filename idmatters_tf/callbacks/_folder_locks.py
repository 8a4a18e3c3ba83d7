"""Locks on the folders of running `fit`s, and their background writes."""

import atexit
import contextlib
import pathlib
import warnings
from collections.abc import Iterator

from idmatters_tf import _locking
from idmatters_tf._background import BackgroundWriter

# By folder. Keras does not notify callbacks when `fit` raises. The next `fit` of this process then takes over the lock.
_locks: dict[pathlib.Path, tuple[_locking.FolderLock, BackgroundWriter]] = {}


def lock(folder: pathlib.Path) -> BackgroundWriter:
    """Lock the folder of a `fit` for this process and return the writer of its checkpoints.

    A write of an earlier `fit` that ended with an exception is completed first.

    Raises:
        FolderInUse: another process holds the lock.
    """
    held, writer = _locks.get(folder.resolve(), (None, BackgroundWriter()))
    if held is not None and held.held:
        _end(writer)
        return writer
    # The folder may have been removed.
    unlock(folder)
    held = _locking.FolderLock(folder)
    _locks[folder.resolve()] = held, writer
    if not held.protects:
        warnings.warn(f"{folder} is on a file system without locks. Use it with one process at a time.", stacklevel=2)
    return writer


def unlock(folder: pathlib.Path) -> None:
    """Complete the write in progress and release the lock on a folder, if this process holds it."""
    held, writer = _locks.pop(folder.resolve(), (None, None))
    if held is not None and writer is not None:
        try:
            _end(writer)
        finally:
            held.release()


@contextlib.contextmanager
def unlock_on_error(folder: pathlib.Path) -> Iterator[None]:
    """Release the lock on a folder if the block raises."""
    try:
        yield
    except BaseException:
        unlock(folder)
        raise


def _end(writer):
    """Wait for a write whose `fit` has ended with an exception, and turn its error into a warning."""
    try:
        writer.wait()
    except Exception as error:
        warnings.warn(" ".join([f"{error}.", *getattr(error, "__notes__", ())]), stacklevel=2)


@atexit.register
def _end_all():
    for _, writer in _locks.values():
        _end(writer)
