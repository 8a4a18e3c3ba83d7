"""Locks that restrict a folder to one process at a time."""

import contextlib
import os
import pathlib

LOCK_FILE = ".lock"


class FolderInUse(RuntimeError):
    """Another process holds the lock of a folder."""


class FolderLost(RuntimeError):
    """A folder or its lock was removed, moved or replaced while this process held the lock."""


class FolderLock:
    """Exclusive lock on a folder, held from construction until `release`. The folder is created if it does not exist.

    The lock is a `filelock.FileLock` on the file `.lock`, which ends with the process on file systems with `flock`.
    `release` removes the file, and folders that were created here and remained empty.

    Args:
        folder: folder to lock.

    Attributes:
        folder: absolute path of the folder.

    Raises:
        FolderInUse: another process or another `FolderLock` of this process holds the lock.
        OSError: the folder is not writable.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        # Deferred, since the import is slow.
        import filelock

        self.folder = pathlib.Path(os.path.abspath(folder))
        self._path = self.folder / LOCK_FILE
        self._created = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = filelock.FileLock(self._path, timeout=0, thread_local=False)
        self._identity = None
        try:
            # The previous holder may have removed the file after it was opened here.
            while self._identity is None:
                self._lock.release()
                self._lock.acquire()
                self._identity = self._identify()
        except filelock.Timeout:
            raise FolderInUse(
                f"{folder} is in use by another process. Wait until it has ended, or choose another folder."
            ) from None
        _held.add(self)

    @property
    def held(self) -> bool:
        """True if this process holds the lock and the folder exists."""
        return self in _held and self._identify() == self._identity

    def release(self) -> None:
        """Release the lock."""
        # A lock file is empty.
        if self.held and not self._path.stat().st_size:
            self._path.unlink()
        _held.discard(self)
        self._lock.release()
        for path in self._created:
            # Fails if the folder is not empty.
            with contextlib.suppress(OSError):
                path.rmdir()

    def _identify(self):
        """Return the device and the inode of the lock file, or None if there is none."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = os.stat(self._path)
            return status.st_dev, status.st_ino
        return None


_held: set[FolderLock] = set()


def check_held(path: str | os.PathLike[str]) -> None:
    """Raise FolderLost if a path is in a folder whose lock this process has lost."""
    absolute = pathlib.Path(os.path.abspath(path))
    for lock in [*_held]:
        if absolute.is_relative_to(lock.folder) and not lock.held:
            lost = lock.folder / LOCK_FILE if lock.folder.is_dir() else lock.folder
            raise FolderLost(
                f"{lost} was deleted, moved or replaced while this process was using {lock.folder}. Nothing more is "
                f"written there."
            )
