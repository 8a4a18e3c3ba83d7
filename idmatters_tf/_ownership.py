"""Checks of the object at a path before it is opened, replaced or removed.

A file replaces only a regular file. A folder is replaced or removed only if it has a `manifest.json` written by
`write_manifest` and contains only the files and folders listed there. Symbolic links, named pipes, sockets and devices
are neither opened nor replaced.
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
# Upper bound on the size of a manifest in bytes.
_LARGEST_MANIFEST = 1 << 24
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}


class PathOccupied(RuntimeError):
    """The object at a path must not be opened, replaced or removed.

    Attributes:
        path: the path.
        reason: end of a sentence that begins with the path.
    """

    def __init__(self, path: str | os.PathLike, reason: str):
        super().__init__(f"{path} {reason}. Move it away, or choose another path.")
        self.path, self.reason = pathlib.Path(path), reason


def find_mode(path: str | os.PathLike) -> int | None:
    """Return the mode of the object at a path without following links, or None if there is none."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return os.lstat(path).st_mode
    return None


def check_replaceable(path: str | os.PathLike, *, folder: bool = False) -> None:
    """Raise PathOccupied if the object at a path must not be replaced.

    Args:
        path: path, which need not exist.
        folder: True for the replacement or removal of a folder, False for that of a file.
    """
    path = pathlib.Path(path)
    mode = find_mode(path)
    if not folder:
        if mode is not None and not stat.S_ISREG(mode):
            raise PathOccupied(path, f"is {_kind(mode)}, not a file")
        return
    # The temporary name of the old folder has to be free as well.
    for each in (temporary_path(path), path):
        reason = None if find_mode(each) is None else _foreign(each)
        if reason is not None:
            raise PathOccupied(each, reason)


def temporary_path(path: pathlib.Path) -> pathlib.Path:
    """Return the temporary path of a folder while it is replaced."""
    return path.with_name(f"{REPLACED}{path.name}")


def check_folder(path: str | os.PathLike, *, links: bool = True) -> None:
    """Raise PathOccupied if the object at a path is not a folder.

    Args:
        path: path, which need not exist.
        links: if False, also raise if the folder contains anything other than files and folders.
    """
    path = pathlib.Path(path)
    mode = find_mode(path)
    if mode is not None and not stat.S_ISDIR(mode):
        raise PathOccupied(path, f"is {_kind(mode)}, not a folder")
    if mode is None or links:
        return
    for inner, kind in _contents(path):
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            raise PathOccupied(inner, f"is {_kind(kind)}, not a file")


def open_regular(path: str | os.PathLike, flags: int, mode: int = 0o666) -> int:
    """Open a regular file without following links. `os.O_CREAT` among the flags creates it.

    Returns:
        The file descriptor.

    Raises:
        PathOccupied: the object is not a regular file. It is not opened, since a named pipe would block.
        OSError: the file cannot be opened.
    """
    check_replaceable(path)
    # The flags guard against a replacement of the file after the check.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    found = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(found):
        os.close(descriptor)
        raise PathOccupied(path, f"is {_kind(found)}, not a file")
    return descriptor


def fingerprint(path: str | os.PathLike) -> dict[str, Any]:
    """Return the size and the SHA-256 sum of a regular file. Raises the errors of `open_regular`."""
    with open(open_regular(path, os.O_RDONLY), "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
        return {"bytes": os.fstat(stream.fileno()).st_size, "sha256": digest.hexdigest()}


def write_manifest(folder: pathlib.Path, **values: Any) -> None:
    """Write the manifest of a folder with `values` and the fingerprints of all files.

    Write it last in a folder that may be replaced or removed later.
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
        ValueError: the manifest is damaged or was written by another program.
        OSError, PathOccupied: the manifest cannot be read.
    """
    with open(open_regular(folder / MANIFEST, os.O_RDONLY), "rb") as stream:
        content = stream.read(_LARGEST_MANIFEST)
    manifest = json.loads(content)
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
    """Return True for a folder that contains all files that its manifest lists. Other files may be there as well."""
    try:
        listed = set(read_manifest(folder)["files"])
    except (ValueError, OSError, PathOccupied):
        return False
    return listed <= {path.relative_to(folder).as_posix() for path, _ in _contents(folder)}


def remove_own(folder: pathlib.Path) -> None:
    """Remove the objects that the manifest of a folder lists, and the folder itself if it is then empty.

    The manifest is removed last, so that an interrupted removal can be repeated.
    """
    if not stat.S_ISDIR(find_mode(folder) or 0):
        return
    with contextlib.suppress(ValueError, OSError, PathOccupied):
        manifest = read_manifest(folder)
        for path, mode in reversed([*_contents(folder)]):
            if _is_listed(path.relative_to(folder).as_posix(), mode, manifest):
                with contextlib.suppress(OSError):
                    path.rmdir() if stat.S_ISDIR(mode) else path.unlink()
        if os.listdir(folder) == [MANIFEST]:
            (folder / MANIFEST).unlink()
    # Fails if the folder is not empty.
    with contextlib.suppress(OSError):
        folder.rmdir()


def _foreign(folder):
    """Return the reason for not replacing or removing a folder, or None."""
    mode = os.lstat(folder).st_mode
    if not stat.S_ISDIR(mode):
        return f"is {_kind(mode)}, not a folder"
    if folder.name.startswith(REPLACED) and not os.listdir(folder):
        # Its removal was interrupted.
        return None
    try:
        manifest = read_manifest(folder)
    except (ValueError, OSError, PathOccupied):
        return f"is a folder without a {MANIFEST} of this program, so that it may contain your files"
    for path, mode in _contents(folder):
        name = path.relative_to(folder).as_posix()
        if name != MANIFEST and not _is_listed(name, mode, manifest):
            return f"contains {name}, which is not listed in its {MANIFEST}"
    return None


def _is_listed(name, mode, manifest):
    if stat.S_ISDIR(mode):
        return name in manifest.get("folders", ())
    return stat.S_ISREG(mode) and name in manifest["files"]


def _contents(folder: pathlib.Path) -> Iterator[tuple[pathlib.Path, int]]:
    """Yield (path, mode) of each object in a folder, a folder before its contents, without following links."""

    def fail(error):
        raise error

    for root, folders, files in os.walk(folder, onerror=fail):
        for name in (*folders, *files):
            path = pathlib.Path(root, name)
            yield path, os.lstat(path).st_mode


def _kind(mode):
    return _KINDS.get(stat.S_IFMT(mode), "a device")
