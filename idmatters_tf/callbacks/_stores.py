"""Locked stores of checkpoints of running `fit`s."""

import atexit
import contextlib
import pathlib
import warnings
from collections.abc import Iterator

from idmatters_tf.checkpointing import CheckpointStore, FolderLock

# By folder. Keras does not notify callbacks when `fit` raises. The next `fit` of this process then takes over the lock.
_open: dict[pathlib.Path, tuple[FolderLock, CheckpointStore]] = {}


def open_store(folder: pathlib.Path, keep: int) -> CheckpointStore:
    """Lock the folder of a `fit` for this process and return the store of its checkpoints.

    A write of an earlier `fit` that ended with an exception is completed first.

    Raises:
        FolderInUse: another process holds the lock.
    """
    close_store(folder)
    lock, store = FolderLock(folder), CheckpointStore(folder, keep)
    _open[folder] = lock, store
    return store


def close_store(folder: pathlib.Path) -> None:
    """Complete the write in progress and release the lock on a folder, if this process holds it."""
    lock, store = _open.pop(folder, (None, None))
    if lock is None or store is None:
        return
    try:
        _end(store)
    finally:
        lock.release()


@contextlib.contextmanager
def close_on_error(folder: pathlib.Path) -> Iterator[None]:
    """Close the store of a folder if the block raises."""
    try:
        yield
    except BaseException:
        close_store(folder)
        raise


def _end(store):
    """Wait for a write whose `fit` has ended with an exception, and turn its error into a warning."""
    try:
        store.wait()
    except Exception as error:
        warnings.warn(" ".join([f"{error}.", *getattr(error, "__notes__", ())]), stacklevel=2)


@atexit.register
def _end_all():
    for _, store in _open.values():
        _end(store)
