"""One process at a time for a run's folder."""

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import socket
from collections.abc import Callable, Iterator

from trainers.cli.arguments import UsageError

FILE = ".lock"


@contextlib.contextmanager
def locked(folder: str | os.PathLike, say: Callable[[str], object]) -> Iterator[None]:
    """Holds the lock of a run's folder for the length of the block; makes the folder where there is none.

    The kernel releases the lock when the process ends, however it ends: a lock file that a killed process has left
    means nothing. A folder made here that holds nothing else is removed again.

    Args:
        folder: the run's folder.
        say: called with a sentence where the file system has no locks.

    Raises:
        UsageError: another process holds the lock, or the folder cannot be written to.
    """
    folder = pathlib.Path(folder)
    try:
        made = _make_folders(folder)
        descriptor = _acquire(folder / FILE, say)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"--out {folder} cannot be written: {reason}. Name another folder.") from error
    try:
        yield
    finally:
        # While it is still held: whoever opened the file in the meantime finds that it is no longer there.
        with contextlib.suppress(OSError):
            (folder / FILE).unlink(missing_ok=True)
        os.close(descriptor)
        for each in made:
            with contextlib.suppress(OSError):
                each.rmdir()


def _make_folders(folder):
    """Makes a folder with its parents. Returns those that were not there, the innermost first."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return made


def _acquire(path, say):
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                say(f"{path.parent} is on a file system without locks: let no other process use it as its --out.")
                return descriptor
            holder = _holder(descriptor)
            os.close(descriptor)
            raise UsageError(
                f"--out {path.parent} is in use by {holder}. Wait until it has ended, or name another folder."
            ) from None
        # The holder before may have removed the file after it was opened here.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                _sign(descriptor)
                return descriptor
        os.close(descriptor)


def _sign(descriptor):
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode(), 0)


def _holder(descriptor):
    try:
        signature = json.loads(os.pread(descriptor, 1000, 0))
        return f"process {int(signature['pid'])} on {signature['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
