"""One process at a time for a run's folder, in the words of a program's options."""

import contextlib
import os
from collections.abc import Callable, Iterator

from idmatters_tf._locking import FolderInUse, FolderLock, FolderLost
from trainers.cli.arguments import RunError, UsageError


@contextlib.contextmanager
def locked(folder: str | os.PathLike, say: Callable[[str], object]) -> Iterator[None]:
    """Holds the lock of a run's folder for the length of the block; makes the folder where there is none.

    A folder made here that holds nothing else is removed again.

    Args:
        folder: the run's folder.
        say: called with a sentence where the file system has no locks.

    Raises:
        UsageError: another process holds the lock, or the folder cannot be written to.
        PathOccupied: the file of the lock is a link, or one of another program.
        RunError: by the block, where the folder or its lock was removed in the meantime.
    """
    try:
        lock = FolderLock(folder)
    except FolderInUse as error:
        raise UsageError(f"--out {error}") from None
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"--out {folder} cannot be written: {reason}. Name another folder.") from error
    if not lock.protects:
        say(f"{folder} is on a file system without locks: let no other process use it as its --out.")
    try:
        yield
    except FolderLost as error:
        raise RunError(f"{error} Start again with another --out, or put the folder back first.") from error
    finally:
        lock.release()
