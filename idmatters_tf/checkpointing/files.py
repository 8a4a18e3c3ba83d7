"""Atomic replacement and removal of files and folders, also if the process is killed, and manifests of folders.

The new content is written to a temporary path in the same folder, flushed to disk and renamed. POSIX cannot replace a
folder with contents at once. The old folder is renamed to `.replaced-NAME`, the new one receives its name, and the old
one is removed. `remove_unfinished` completes or reverts an exchange that a kill has interrupted.
"""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import shutil
import zlib
from collections.abc import Generator
from typing import Any

from idmatters_tf.checkpointing.locks import check_held

MANIFEST = "manifest.json"
# Number of bytes that are read at once.
_BLOCK = 2**18
_REPLACED, _WRITING = ".replaced-", ".writing-"


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, folder: bool = False) -> Generator[pathlib.Path]:
    """Yield a temporary path in the same folder, which replaces `path` after the block has succeeded.

    The block creates a file there, or with `folder` a folder. The temporary name has the suffix of `path`, for
    libraries that choose a format by the suffix. Readers see either the old or the new content. If the block raises,
    the temporary path is removed.

    Args:
        path: path to replace, which need not exist.
        folder: True for a folder, which replaces any file or folder; False for a file, which replaces files only.

    Raises:
        FolderLost: `path` is in a folder whose lock this process has lost.
        OSError: the file or folder could not be written, or a file would replace a folder.
    """
    path = pathlib.Path(path)
    check_held(path)
    if folder:
        _finish_exchange(path)
    elif path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a folder is in the place of a file", str(path))
    beside = _beside(path)
    try:
        _remove(beside)
        yield beside
        for inner in (*beside.rglob("*"), beside):
            _sync(inner)
        # The block may have taken minutes.
        check_held(path)
        if folder and os.path.lexists(path):
            os.rename(path, _aside(path))
            _sync(path.parent)
        os.replace(beside, path)
        _sync(path.parent)
    finally:
        _remove(beside)
        if folder:
            _finish_exchange(path)


def remove(path: str | os.PathLike[str]) -> None:
    """Remove a file or a folder, if there is one. Its name is free at once, also if the process is killed."""
    path = pathlib.Path(path)
    if os.path.lexists(path):
        _remove(_beside(path))
        os.rename(path, _beside(path))
        _remove(_beside(path))


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file of text (UTF-8) or bytes, see `replacing`."""
    with replacing(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


def remove_unfinished(folder: str | os.PathLike[str]) -> None:
    """Remove unfinished files of killed processes in a folder, and complete or revert their replacements.

    The caller must be the only process that writes to the folder.
    """
    folder = pathlib.Path(folder)
    for path in [*folder.glob(f"{_WRITING}[0-9]*-?*")]:
        _remove(path)
    for path in [*folder.glob(f"{_REPLACED}?*")]:
        _finish_exchange(folder / path.name.removeprefix(_REPLACED))


def write_manifest(folder: pathlib.Path, **values: object) -> None:
    """Write the manifest of a folder with `values` and the fingerprints of all files."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if not path.is_dir()}
    manifest = {**values, "files": {name: fingerprint(path) for name, path in files.items()}}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def read_manifest(folder: pathlib.Path) -> dict[str, Any]:
    """Return the manifest of a folder, whose "files" are fingerprints by name.

    Raises:
        ValueError: the manifest is damaged or was written by another program.
        OSError: the manifest cannot be read.
    """
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
    if type(manifest) is not dict or type(manifest.get("files")) is not dict:
        raise ValueError("the manifest lists no files")
    return manifest


def fingerprint(path: pathlib.Path, checksum: str = "crc32") -> dict[str, int | str]:
    """Return the size and a checksum of a file, CRC-32 or an algorithm of `hashlib`.

    CRC-32 detects damage, at twice the speed of SHA-256.
    """
    with open(path, "rb") as stream:
        if checksum != "crc32":
            return {"bytes": path.stat().st_size, checksum: hashlib.file_digest(stream, checksum).hexdigest()}
        value = 0
        # Memory of new blocks costs more than their checksum.
        block = memoryview(bytearray(_BLOCK))
        while size := stream.readinto(block):
            value = zlib.crc32(block[:size], value)
    return {"bytes": path.stat().st_size, checksum: f"{value:08x}"}


def _beside(path: pathlib.Path) -> pathlib.Path:
    """Return the temporary path of new or removed content."""
    return path.with_name(f"{_WRITING}{os.getpid()}-{path.name}")


def _aside(path: pathlib.Path) -> pathlib.Path:
    """Return the temporary path of a folder while it is replaced."""
    return path.with_name(f"{_REPLACED}{path.name}")


def _finish_exchange(path: pathlib.Path) -> None:
    """Restore the old folder if there is no new one, otherwise remove it."""
    aside = _aside(path)
    if os.path.lexists(aside) and not os.path.lexists(path):
        os.rename(aside, path)
        _sync(path.parent)
    _remove(aside)


def _remove(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
