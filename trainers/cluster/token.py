"""The secret by which the tasks of a cluster know one another.

It comes from the environment variable `IDMATTERS_CLUSTER_TOKEN`, which `trainers.launch` sets, or else from the file
`.cluster-token` in the run's folder, which the chief makes, readable for its own user alone.
"""

import contextlib
import os
import pathlib
import secrets

from trainers.cli.arguments import UsageError

VARIABLE = "IDMATTERS_CLUSTER_TOKEN"
FILE = ".cluster-token"
_SHORTEST = 16


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
        if path.stat().st_mode & 0o077:
            raise UsageError(f"{path} can be read by other users of this machine. Delete it: it will be made anew.")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"--out {folder} cannot be written: {error.strerror or error}. Name another folder."
        ) from error


def of_task(folder: pathlib.Path) -> bytes | None:
    """The token, or None where there is none yet."""
    token = _of_environment()
    if token is not None:
        return token
    try:
        return (folder / FILE).read_bytes() or None
    except OSError:
        return None


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


def _make(path):
    if path.exists():
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
