"""Locks that restrict a folder to one process at a time."""

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import socket
import time

from idmatters_tf._ownership import PathOccupied, open_regular

FILE = ".lock"
# A killed process with many threads and much memory takes a while to end.
_ENDING_SECONDS = 10.0


class FolderInUse(RuntimeError):
    """Another process holds the lock of a folder.

    Attributes:
        folder: the folder.
        holder: the process and its host, in words.
    """

    def __init__(self, folder: pathlib.Path, holder: str):
        super().__init__(f"{folder} is in use by {holder}. Wait until it has ended, or choose another folder.")
        self.folder, self.holder = folder, holder


class FolderLost(RuntimeError):
    """A folder or its lock was removed, moved or replaced while this process held the lock."""


class FolderLock:
    """Exclusive lock on a folder, held from construction until `release`. The folder is created if it does not exist.

    The kernel releases the lock when the process ends for any reason, so that the lock file of a killed process has no
    effect. A forked process does not hold the lock. If the holder has been killed and is about to end, the constructor
    waits for its end.

    Args:
        folder: folder to lock.

    Attributes:
        absolute: absolute path of the folder.
        protects: False if the file system has no locks, so that a second process is not detected.

    Raises:
        FolderInUse: another process or another `FolderLock` of this process holds the lock.
        PathOccupied: the lock file is a link or a foreign file, which is not changed.
        OSError: the folder is not writable.
    """

    def __init__(self, folder: str | os.PathLike):
        self._folder = pathlib.Path(folder)
        self.absolute = pathlib.Path(os.path.abspath(folder))
        self._created = [each for each in (self._folder, *self._folder.parents) if not each.exists()]
        self._folder.mkdir(parents=True, exist_ok=True)
        self.protects = True
        self._descriptor = self._acquire()
        _held.add(self)

    @property
    def held(self) -> bool:
        """True if this process holds the lock and the folder exists."""
        return self in _held and self._is_lock_file(self._descriptor)

    def check(self) -> None:
        """Raise FolderLost unless this process holds the lock and the folder exists."""
        if self.held:
            return
        lost = self._path if self._folder.is_dir() else self._folder
        raise FolderLost(
            f"{lost} was deleted, moved or replaced while this process was using {self._folder}. Nothing more is "
            f"written there."
        )

    def release(self) -> None:
        """Release the lock and remove its file and the folders that were created for it, if they are empty."""
        if self not in _held:
            return
        # Before the release, so that a process that has opened the file detects its removal.
        if self._is_lock_file(self._descriptor):
            with contextlib.suppress(OSError):
                self._path.unlink()
        self.forget()
        for each in self._created:
            with contextlib.suppress(OSError):
                each.rmdir()

    @property
    def _path(self):
        return self._folder / FILE

    def forget(self) -> None:
        """Close the lock file without removing it, as in a forked process."""
        _held.discard(self)
        os.close(self._descriptor)

    def _acquire(self):
        deadline = time.monotonic() + _ENDING_SECONDS
        while True:
            descriptor = open_regular(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            if not _is_lock(descriptor):
                os.close(descriptor)
                raise PathOccupied(self._path, "is not a lock file of this program")
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    self.protects = False
                    return descriptor
                host, pid = _signature(descriptor)
                os.close(descriptor)
                if host == socket.gethostname() and _is_ending(pid) and time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                holder = "another process" if pid is None else f"process {pid} on {host}"
                raise FolderInUse(self._folder, holder) from None
            # The previous holder may have removed the file after it was opened here.
            if self._is_lock_file(descriptor):
                _sign(descriptor)
                return descriptor
            os.close(descriptor)

    def _is_lock_file(self, descriptor):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        return False


def check_held(path: str | os.PathLike) -> None:
    """Raise FolderLost if a path is in a folder whose lock this process has lost."""
    absolute = pathlib.Path(os.path.abspath(path))
    for lock in [*_held]:
        if absolute.is_relative_to(lock.absolute):
            lock.check()


# A forked process shares the open file and thus the lock, and would hold it after the end of its parent.
_held: set[FolderLock] = set()


def _close_all():
    for lock in [*_held]:
        lock.forget()


os.register_at_fork(after_in_child=_close_all)


def _sign(descriptor):
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode(), 0)


def _is_lock(descriptor):
    """Return True for a file that `_sign` has written or is about to write. A power cut may leave zeros."""
    content = os.pread(descriptor, 1000, 0).strip(b"\0")
    return (not content or content.startswith(b'{"host"')) and os.fstat(descriptor).st_nlink <= 1


def _signature(descriptor):
    """Return host and process ID of the holder, or (None, None) if the file is not signed."""
    try:
        signature = json.loads(os.pread(descriptor, 1000, 0))
        return str(signature["host"]), int(signature["pid"])
    except (ValueError, KeyError, TypeError):
        return None, None


def _is_ending(pid):
    """Return True if a process has ended but some of its threads still hold its open files."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        # The process is gone, or the system has no /proc.
        return pathlib.Path("/proc/self/stat").exists()
    return state in "ZX"
