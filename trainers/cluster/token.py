"""The secret by which the tasks of a cluster know one another.

It comes from the environment variable `IDMATTERS_CLUSTER_TOKEN`, which `trainers.launch` sets, or else from the file
`.cluster-token` in the run's folder, which the chief makes, readable for its own user alone, and removes when it ends.
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


def new() -> str:
    """A token for the environment of all tasks."""
    return secrets.token_hex(32)


def of_chief(folder: pathlib.Path) -> bytes:
    """The token, which is made where there is none yet.

    A file that is there already is used again: tasks may have read it before the chief was started.

    Raises:
        UsageError: the token in the environment is too short, or the file can be neither used nor made.
    """
    token = _of_environment()
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
        raise UsageError(f"{path} was removed while the cluster was being started. Give the same command again.")
    return token


def of_task(folder: pathlib.Path) -> bytes | None:
    """The token, or None where there is none yet.

    Raises:
        UsageError: the token in the environment is too short, or the file cannot be used.
    """
    token = _of_environment()
    if token is not None:
        return token
    try:
        return _read(folder / FILE)
    except OSError:
        return None


def remove(folder: pathlib.Path) -> None:
    """Remove the token's file at the end of a run, where the chief has made it or used it again."""
    if not os.environ.get(VARIABLE):
        with contextlib.suppress(OSError):
            (folder / FILE).unlink()


def how_to_share(folder: pathlib.Path) -> str:
    """What a task needs that has no token."""
    return (
        f"neither {VARIABLE} nor {folder / FILE} is there. Set the variable to the same secret for every task, or give "
        f"all tasks the same --out, on a folder that they share"
    )


def _of_environment():
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    if len(text) < _SHORTEST:
        raise UsageError(f"{VARIABLE} must be a secret of at least {_SHORTEST} characters. Received: {len(text)}.")
    return text.encode(errors="surrogateescape")


def _read(path):
    """The content of a file that nobody else can have written or read; None where there is none."""
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
    return UsageError(f"{path} {reason}. Delete it, and start all tasks again: the chief makes another one.")


def _make(path):
    if os.path.lexists(path):
        return
    beside = path.with_name(f".writing-{os.getpid()}-{FILE}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="ascii") as stream:
            stream.write(new())
        # Unlike a renamed file, a link never replaces one that is there.
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
    finally:
        beside.unlink(missing_ok=True)
