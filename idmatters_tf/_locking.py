"""One process at a time for a folder."""

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
# A killed process with many threads and much memory takes a while to disappear.
_ENDING_SECONDS = 10.0


class FolderInUse(RuntimeError):
    """Another process holds the lock of a folder.

    Attributes:
        folder: the folder.
        holder: the process and its host, in words.
    """

    def __init__(self, folder: pathlib.Path, holder: str):
        super().__init__(f"{folder} is in use by {holder}. Wait until it has ended, or name another folder.")
        self.folder, self.holder = folder, holder


class FolderLost(RuntimeError):
    """A folder or its lock was removed, moved or replaced while this process held the lock."""


class FolderLock:
    """The lock of a folder, held from the construction on until `release`; the folder is made where there is none.

    The kernel releases the lock when the process ends, however it ends: a lock file that a killed process has left
    means nothing. A process that is forked off does not hold it. Where the holder has been killed and is disappearing,
    its end is waited for.

    Args:
        folder: what only one process at a time may write to.

    Attributes:
        absolute: the absolute path of the folder.
        protects: False where the file system has no locks, so that a second process would not be noticed.

    Raises:
        FolderInUse: another process holds it, or this one does by another `FolderLock`.
        PathOccupied: the file of the lock is a link, or one that was not written here; it is not touched.
        OSError: the folder cannot be written to.
    """

    def __init__(self, folder: str | os.PathLike):
        self._folder = pathlib.Path(folder)
        self.absolute = pathlib.Path(os.path.abspath(folder))
        self._made = [each for each in (self._folder, *self._folder.parents) if not each.exists()]
        self._folder.mkdir(parents=True, exist_ok=True)
        self.protects = True
        self._descriptor = self._acquire()
        _held.add(self)

    @property
    def held(self) -> bool:
        """Whether this process still holds the lock, of a folder that is still there."""
        return self in _held and self._is_the_file(self._descriptor)

    def check(self) -> None:
        """Raise FolderLost unless this process still holds the lock, of a folder that is still there."""
        if self.held:
            return
        lost = self._path if self._folder.is_dir() else self._folder
        raise FolderLost(
            f"{lost} was deleted, moved or replaced while this process was using {self._folder}. Nothing more is "
            f"written there."
        )

    def release(self) -> None:
        """Releases the lock and removes its file, and the folders made for it as far as they hold nothing else."""
        if self not in _held:
            return
        # While it is still held: whoever opened the file in the meantime finds that it is no longer there.
        if self._is_the_file(self._descriptor):
            with contextlib.suppress(OSError):
                self._path.unlink()
        self.forget()
        for each in self._made:
            with contextlib.suppress(OSError):
                each.rmdir()

    @property
    def _path(self):
        return self._folder / FILE

    def forget(self) -> None:
        """Close the file of the lock and leave it in place, as in a child process that was forked off."""
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
                if host == socket.gethostname() and _is_disappearing(pid) and time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                holder = "another process" if pid is None else f"process {pid} on {host}"
                raise FolderInUse(self._folder, holder) from None
            # The holder before may have removed the file after it was opened here.
            if self._is_the_file(descriptor):
                _sign(descriptor)
                return descriptor
            os.close(descriptor)

    def _is_the_file(self, descriptor):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        return False


def check_held(path: str | os.PathLike) -> None:
    """Raise FolderLost if a path is in a folder that this process has locked, and the lock is lost."""
    absolute = pathlib.Path(os.path.abspath(path))
    for lock in [*_held]:
        if absolute.is_relative_to(lock.absolute):
            lock.check()


# A child that is forked off shares the open file, and with it the lock: it would hold it beyond the end of its parent.
_held: set[FolderLock] = set()


def _forget():
    for lock in [*_held]:
        lock.forget()


os.register_at_fork(after_in_child=_forget)


def _sign(descriptor):
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode(), 0)


def _is_lock(descriptor):
    """Return True for a file that `_sign` has written, or is to write; a power cut may have left zeros."""
    content = os.pread(descriptor, 1000, 0).strip(b"\0")
    return (not content or content.startswith(b'{"host"')) and os.fstat(descriptor).st_nlink <= 1


def _signature(descriptor):
    """(host, process) of the holder; (None, None) where it has not signed."""
    try:
        signature = json.loads(os.pread(descriptor, 1000, 0))
        return str(signature["host"]), int(signature["pid"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None, None


def _is_disappearing(pid):
    """Whether a process has ended, though not yet all of its threads, with which its open files go."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        # Gone since, or a system without /proc.
        return pathlib.Path("/proc/self/stat").exists()
    return state in "ZX"
