"""Locks on the folders of running `fit`s."""

import contextlib
import pathlib
import warnings
from collections.abc import Iterator

from idmatters_tf import _locking

# By folder. Keras tells no callback that `fit` has ended with an exception: a further `fit` of this process takes over.
_locks: dict[pathlib.Path, _locking.FolderLock] = {}


def lock(folder: pathlib.Path) -> None:
    """Lock the folder of a `fit` for this process. Raises FolderInUse if another process holds the lock."""
    held = _locks.get(folder.resolve())
    if held is not None and held.held:
        return
    # The folder may have been removed since.
    unlock(folder)
    _locks[folder.resolve()] = held = _locking.FolderLock(folder)
    if not held.protects:
        warnings.warn(f"{folder} is on a file system without locks: let no other process use it.", stacklevel=2)


def unlock(folder: pathlib.Path) -> None:
    """Release the lock on a folder; nothing happens without one."""
    held = _locks.pop(folder.resolve(), None)
    if held is not None:
        held.release()


@contextlib.contextmanager
def unlocking_on_error(folder: pathlib.Path) -> Iterator[None]:
    """Release the lock on a folder if the block raises."""
    try:
        yield
    except BaseException:
        unlock(folder)
        raise
