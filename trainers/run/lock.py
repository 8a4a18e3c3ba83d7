"""Lock of a run's folder, with error messages that name the options of a program."""

import contextlib
import os
from collections.abc import Iterator

from idmatters_tf.checkpointing import FolderInUse, FolderLock, FolderLost
from trainers.cli.arguments import RunError, UsageError


@contextlib.contextmanager
def hold_lock(folder: str | os.PathLike) -> Iterator[None]:
    """Hold the lock of a run's folder inside the block, and create the folder if it does not exist.

    A folder created here that remains empty is removed again.

    Args:
        folder: folder of the run.

    Raises:
        UsageError: another process holds the lock, or the folder is not writable.
        RunError: raised by the block if the folder or its lock was removed in the meantime.
    """
    try:
        lock = FolderLock(folder)
    except FolderInUse as error:
        raise UsageError(f"--out {error}") from None
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"--out {folder} cannot be written: {reason}. Use another folder.") from error
    try:
        yield
    except FolderLost as error:
        raise RunError(f"{error} Start again with another --out, or restore the folder first.") from error
    finally:
        lock.release()
