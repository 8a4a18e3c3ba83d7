"""Locks on the folders of running `fit`s, and the writes in flight there."""

import atexit
import contextlib
import pathlib
import warnings
from collections.abc import Iterator

from idmatters_tf import _locking
from idmatters_tf._background import BackgroundWriter

# By folder. Keras tells no callback that `fit` has ended with an exception: a further `fit` of this process takes over.
_locks: dict[pathlib.Path, tuple[_locking.FolderLock, BackgroundWriter]] = {}


def lock(folder: pathlib.Path) -> BackgroundWriter:
    """Lock the folder of a `fit` for this process, and return the writer of its checkpoints.

    No write is in flight: one of an earlier `fit` that ended with an exception is waited for.

    Raises:
        FolderInUse: another process holds the lock.
    """
    held, writer = _locks.get(folder.resolve(), (None, BackgroundWriter()))
    if held is not None and held.held:
        _end(writer)
        return writer
    # The folder may have been removed since.
    unlock(folder)
    held = _locking.FolderLock(folder)
    _locks[folder.resolve()] = held, writer
    if not held.protects:
        warnings.warn(f"{folder} is on a file system without locks: let no other process use it.", stacklevel=2)
    return writer


def unlock(folder: pathlib.Path) -> None:
    """Release the lock on a folder, once no write is in flight; nothing happens without one."""
    held, writer = _locks.pop(folder.resolve(), (None, None))
    if held is not None and writer is not None:
        try:
            _end(writer)
        finally:
            held.release()


@contextlib.contextmanager
def unlocking_on_error(folder: pathlib.Path) -> Iterator[None]:
    """Release the lock on a folder if the block raises."""
    try:
        yield
    except BaseException:
        unlock(folder)
        raise


def _end(writer):
    """Wait for a write whose `fit` has ended with an exception; its own error is a warning."""
    try:
        writer.wait()
    except Exception as error:
        warnings.warn(" ".join([f"{error}.", *getattr(error, "__notes__", ())]), stacklevel=2)


@atexit.register
def _end_all():
    for _, writer in _locks.values():
        _end(writer)
