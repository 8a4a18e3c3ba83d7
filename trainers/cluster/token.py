"""Secret for the authentication of the tasks of a cluster.

It is the value of the environment variable `IDMATTERS_CLUSTER_TOKEN`, which `trainers.launch` sets. Without the
variable, it is the content of `.cluster-token` in the run's folder. The chief creates this file, readable by its user
only, and removes it at the end.
"""

import contextlib
import errno
import os
import pathlib
import secrets
import stat

from trainers.cli.arguments import UsageError

VARIABLE = "IDMATTERS_CLUSTER_TOKEN"
FILE = ".cluster-token"
_SHORTEST, _LONGEST = 16, 1024


def generate() -> str:
    """Return a new token for the environment of all tasks."""
    return secrets.token_hex(32)


def load_or_create(folder: pathlib.Path) -> bytes:
    """Return the token, and create it if there is none; for the chief.

    An existing file is reused, since tasks may have read it before the start of the chief.

    Raises:
        UsageError: the token in the environment is too short, or the file cannot be used or created.
    """
    token = _from_environment()
    if token is not None:
        return token
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _make(path)
        token = _read(path)
    except OSError as error:
        raise UsageError(
            f"--out {folder} cannot be written: {error.strerror or error}. Name another folder."
        ) from error
    if token is None:
        raise UsageError(f"{path} was removed during the start of the cluster. Repeat the command.")
    return token


def load(folder: pathlib.Path) -> bytes | None:
    """Return the token, or None if there is none yet; for all tasks but the chief.

    Raises:
        UsageError: the token in the environment is too short, or the file cannot be used.
    """
    token = _from_environment()
    if token is not None:
        return token
    try:
        return _read(folder / FILE)
    except OSError:
        return None


def remove(folder: pathlib.Path) -> None:
    """Remove the file at the end of a run, unless the token is in the environment."""
    if not os.environ.get(VARIABLE):
        with contextlib.suppress(OSError):
            (folder / FILE).unlink()


def sharing_advice(folder: pathlib.Path) -> str:
    """Return an error message for a task without a token."""
    return (
        f"neither {VARIABLE} nor {folder / FILE} exists. Set the variable to the same secret for every task, or start "
        f"all tasks with the same --out on a shared file system"
    )


def _from_environment():
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    if len(text) < _SHORTEST:
        raise UsageError(f"{VARIABLE} must be a secret of at least {_SHORTEST} characters. Received: {len(text)}.")
    return text.encode(errors="surrogateescape")


def _read(path):
    """Return the content of a file that no other user can write or read, or None if there is no file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be read: {error.strerror}"
        raise _unusable(path, reason) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _unusable(path, "is not a file")
        if status.st_uid != os.geteuid():
            raise _unusable(path, "belongs to another user")
        if status.st_mode & 0o077:
            raise _unusable(path, "can be read by other users of this machine")
        token = os.read(descriptor, _LONGEST + 1)
    finally:
        os.close(descriptor)
    if not _SHORTEST <= len(token) <= _LONGEST:
        raise _unusable(path, f"must have {_SHORTEST} to {_LONGEST} bytes")
    return token


def _unusable(path, reason):
    return UsageError(f"{path} {reason}. Delete it and start all tasks again.")


def _make(path):
    if os.path.lexists(path):
        return
    beside = path.with_name(f".writing-{os.getpid()}-{FILE}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="ascii") as stream:
            stream.write(generate())
        # Unlike renaming, linking never replaces an existing file.
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
    finally:
        beside.unlink(missing_ok=True)
