"""Checks of what stands at a path: what may be opened, and what may be replaced or removed.

A file may replace a regular file only. A folder may be replaced or removed only if it has a `manifest.json` that was
written by `write_manifest` and contains nothing but the files and folders listed there. Symbolic links, named pipes,
sockets and devices are neither opened nor replaced.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import stat
from collections.abc import Iterator
from typing import Any

MANIFEST = "manifest.json"
REPLACED = ".replaced-"
# Far beyond the manifest of any folder that is written here.
_LARGEST_MANIFEST = 1 << 24
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}


class PathOccupied(RuntimeError):
    """A path holds something that must not be opened, replaced or removed.

    Attributes:
        path: the path.
        reason: the end of a sentence that begins with the path.
    """

    def __init__(self, path: str | os.PathLike, reason: str):
        super().__init__(f"{path} {reason}. Move it away, or name another path.")
        self.path, self.reason = pathlib.Path(path), reason


def mode_of(path: str | os.PathLike) -> int | None:
    """Return the mode of a path itself, without following a link; None if there is nothing."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return os.lstat(path).st_mode
    return None


def check_replaceable(path: str | os.PathLike, *, folder: bool = False) -> None:
    """Raise PathOccupied if a file, or a folder, must not take the place of what is at a path.

    Args:
        path: may be free.
        folder: True for the replacement by a folder, or the removal of one.
    """
    path = pathlib.Path(path)
    mode = mode_of(path)
    if not folder:
        if mode is not None and not stat.S_ISREG(mode):
            raise PathOccupied(path, f"is {_kind(mode)}, not a file")
        return
    # The name that the old folder gets while it is replaced has to be free as well.
    for each in (aside_of(path), path):
        reason = None if mode_of(each) is None else _foreign(each)
        if reason is not None:
            raise PathOccupied(each, reason)


def aside_of(path: pathlib.Path) -> pathlib.Path:
    """Return the path to which a folder is renamed while another one takes its place."""
    return path.with_name(f"{REPLACED}{path.name}")


def check_folder(path: str | os.PathLike, *, links: bool = True) -> None:
    """Raise PathOccupied if there is something other than a folder at a path.

    Args:
        path: may be free.
        links: False raises as well if there is anything but files and folders inside.
    """
    path = pathlib.Path(path)
    mode = mode_of(path)
    if mode is not None and not stat.S_ISDIR(mode):
        raise PathOccupied(path, f"is {_kind(mode)}, not a folder")
    if mode is None or links:
        return
    for inner, kind in _contents(path):
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            raise PathOccupied(inner, f"is {_kind(kind)}, not a file")


def open_regular(path: str | os.PathLike, flags: int, mode: int = 0o666) -> int:
    """Open a regular file, which `os.O_CREAT` among the flags may create; links are not followed.

    Returns:
        The descriptor.

    Raises:
        PathOccupied: there is something else, which is not opened: a named pipe would block.
        OSError: the file cannot be opened.
    """
    check_replaceable(path)
    # In case it has become another one since.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    found = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(found):
        os.close(descriptor)
        raise PathOccupied(path, f"is {_kind(found)}, not a file")
    return descriptor


def fingerprint(path: str | os.PathLike) -> dict[str, Any]:
    """Return the size and the SHA-256 sum of a regular file; raises as `open_regular` does."""
    with open(open_regular(path, os.O_RDONLY), "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
        return {"bytes": os.fstat(stream.fileno()).st_size, "sha256": digest.hexdigest()}


def write_manifest(folder: pathlib.Path, **values: Any) -> None:
    """Write the manifest of a folder: other values, and all files with their fingerprints.

    The manifest of a folder that may be replaced or removed later is written last.
    """
    files, folders = {}, []
    for path, mode in _contents(folder):
        name = path.relative_to(folder).as_posix()
        if stat.S_ISDIR(mode):
            folders.append(name)
        else:
            files[name] = fingerprint(path)
    manifest = {**values, "files": dict(sorted(files.items()))}
    if folders:
        manifest["folders"] = sorted(folders)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def read_manifest(folder: pathlib.Path) -> dict[str, Any]:
    """Return the manifest of a folder, whose "files" are fingerprints by name.

    Raises:
        ValueError: it is damaged, or of another program.
        OSError, PathOccupied: it cannot be read.
    """
    with open(open_regular(folder / MANIFEST, os.O_RDONLY), "rb") as stream:
        content = stream.read(_LARGEST_MANIFEST)
    try:
        manifest = json.loads(content)
    except RecursionError:
        manifest = None
    values = manifest if isinstance(manifest, dict) else {}
    files, folders = values.get("files"), values.get("folders", [])
    if not isinstance(files, dict) or not all(
        isinstance(each, dict) and {"bytes", "sha256"} <= set(each) for each in files.values()
    ):
        raise ValueError("the manifest lists no files")
    if not isinstance(folders, list) or not all(isinstance(name, str) for name in folders):
        raise ValueError("the manifest lists no folders")
    return values


def is_complete(folder: pathlib.Path) -> bool:
    """Return True for a folder that holds everything that its manifest lists, and nothing else."""
    if _foreign(folder) is not None:
        return False
    there = {path.relative_to(folder).as_posix() for path, _ in _contents(folder)}
    return set(read_manifest(folder)["files"]) <= there


def remove_own(folder: pathlib.Path) -> None:
    """Remove what the manifest of a folder lists, and the folder itself unless something else is in it.

    The manifest goes last, so that a removal that was cut off can be repeated.
    """
    if not stat.S_ISDIR(mode_of(folder) or 0):
        return
    with contextlib.suppress(ValueError, OSError, PathOccupied):
        manifest = read_manifest(folder)
        for path, mode in reversed([*_contents(folder)]):
            if _is_listed(path.relative_to(folder).as_posix(), mode, manifest):
                with contextlib.suppress(OSError):
                    path.rmdir() if stat.S_ISDIR(mode) else path.unlink()
        if os.listdir(folder) == [MANIFEST]:
            (folder / MANIFEST).unlink()
    # Fails where anything is left.
    with contextlib.suppress(OSError):
        folder.rmdir()


def _foreign(folder):
    """Return the reason why a folder must not be replaced or removed, or None."""
    mode = os.lstat(folder).st_mode
    if not stat.S_ISDIR(mode):
        return f"is {_kind(mode)}, not a folder"
    if folder.name.startswith(REPLACED) and not os.listdir(folder):
        # Its removal was cut off.
        return None
    try:
        manifest = read_manifest(folder)
    except (ValueError, OSError, PathOccupied):
        return f"is a folder without a {MANIFEST} of this program, so that it may hold files of yours"
    for path, mode in _contents(folder):
        name = path.relative_to(folder).as_posix()
        if name != MANIFEST and not _is_listed(name, mode, manifest):
            return f"holds {name}, which is not listed in its {MANIFEST}"
    return None


def _is_listed(name, mode, manifest):
    if stat.S_ISDIR(mode):
        return name in manifest.get("folders", ())
    return stat.S_ISREG(mode) and name in manifest["files"]


def _contents(folder: pathlib.Path) -> Iterator[tuple[pathlib.Path, int]]:
    """Yield (path, mode) of everything inside of a folder, a folder before its contents; links are not followed."""

    def fail(error):
        raise error

    for root, folders, files in os.walk(folder, onerror=fail):
        for name in (*folders, *files):
            path = pathlib.Path(root, name)
            yield path, os.lstat(path).st_mode


def _kind(mode):
    return _KINDS.get(stat.S_IFMT(mode), "a device")
