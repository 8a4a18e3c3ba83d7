"""Atomic replacement of files and folders, also if the process is killed, and manifests of folders.

The new content is written to a temporary path in the same folder, flushed to disk and renamed. A folder is replaced or
removed only if it has a `manifest.json` and contains nothing else than the files and folders listed there.

POSIX cannot replace a folder with contents at once. The old folder is renamed to `.replaced-NAME`, the new one receives
its name, and the old one is removed. `remove_unfinished` completes or reverts an exchange that a kill has interrupted.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

from idmatters_tf.checkpointing.locks import check_held

MANIFEST = "manifest.json"
_REPLACED, _WRITING = ".replaced-", ".writing-"


class PathOccupied(RuntimeError):
    """The object at a path must not be replaced or removed.

    Attributes:
        path: the path.
    """

    def __init__(self, path: str | os.PathLike, reason: str):
        super().__init__(f"{path} {reason}. Move it away, or choose another path.")
        self.path = pathlib.Path(path)


def check_replaceable(path: pathlib.Path) -> None:
    """Raise PathOccupied if the object at the path of a folder must not be replaced or removed."""
    # The temporary name of the old folder has to be free as well.
    for occupied in (_aside(path), path):
        reason = _foreign(occupied) if os.path.lexists(occupied) else None
        if reason is not None:
            raise PathOccupied(occupied, reason)


@contextlib.contextmanager
def replacing(path: str | os.PathLike, *, folder: bool = False) -> Iterator[pathlib.Path]:
    """Yield a temporary path in the same folder, which replaces `path` after the block has succeeded.

    The block creates a file there, or with `folder` a folder, which receives a manifest if the block has not written
    one. The temporary name has the suffix of `path`, for libraries that choose a format by the suffix. Readers see
    either the old or the new content. If the block raises, the temporary path is removed.

    Args:
        path: path to replace, which need not exist.
        folder: True for a folder, False for a file.

    Raises:
        PathOccupied: the object at `path` must not be replaced. It is not changed.
        FolderLost: `path` is in a folder whose lock this process has lost.
        OSError: the file or folder could not be written.
    """
    path = pathlib.Path(path)
    check_held(path)
    if folder:
        _finish_exchange(path)
        check_replaceable(path)
    elif path.is_dir():
        raise PathOccupied(path, "is a folder, not a file")
    beside = path.with_name(f"{_WRITING}{os.getpid()}-{path.name}")
    try:
        _remove(beside)
        yield beside
        if folder and not (beside / MANIFEST).exists():
            write_manifest(beside)
        for inner in (*beside.rglob("*"), beside):
            _sync(inner)
        # The block may have taken minutes.
        check_held(path)
        if folder and path.exists():
            os.rename(path, _aside(path))
            _sync(path.parent)
        os.replace(beside, path)
        _sync(path.parent)
    finally:
        _remove(beside)
        if folder:
            _finish_exchange(path)


def write_atomically(path: str | os.PathLike, content: str | bytes) -> None:
    """Write a file of text (UTF-8) or bytes, see `replacing`."""
    with replacing(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


def remove_unfinished(folder: str | os.PathLike) -> None:
    """Remove unfinished files of killed processes in a folder, and complete or revert their replacements.

    The caller must be the only process that writes to the folder.
    """
    folder = pathlib.Path(folder)
    for path in [*folder.glob(f"{_WRITING}[0-9]*-?*")]:
        _remove(path)
    for path in [*folder.glob(f"{_REPLACED}?*")]:
        _finish_exchange(folder / path.name.removeprefix(_REPLACED))


def write_manifest(folder: pathlib.Path, **values: Any) -> None:
    """Write the manifest of a folder with `values` and the fingerprints of all files.

    Write it last in a folder that may be replaced or removed later.
    """
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    files = {name: fingerprint(path) for name, path in paths.items() if not path.is_dir()}
    folders = [name for name, path in paths.items() if path.is_dir()]
    manifest = {**values, "files": files, "folders": folders}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def read_manifest(folder: pathlib.Path) -> dict[str, Any]:
    """Return the manifest of a folder, whose "files" are fingerprints by name.

    Raises:
        ValueError: the manifest is damaged or was written by another program.
        OSError: the manifest cannot be read.
    """
    manifest = json.loads((folder / MANIFEST).read_bytes())
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or not isinstance(manifest.get("folders"), list):
        raise ValueError("the manifest lists no files")
    return manifest


def fingerprint(path: pathlib.Path) -> dict[str, Any]:
    """Return the size and the SHA-256 sum of a file."""
    with open(path, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def remove_listed(folder: pathlib.Path) -> None:
    """Remove the files and folders that the manifest of a folder lists, and the folder itself if it is then empty.

    The manifest is removed last, so that an interrupted removal can be repeated.
    """
    with contextlib.suppress(ValueError, OSError):
        manifest = read_manifest(folder)
        for path in sorted(folder.rglob("*"), reverse=True):
            if _is_listed(path, folder, manifest):
                with contextlib.suppress(OSError):
                    path.rmdir() if path.is_dir() else path.unlink()
        if os.listdir(folder) == [MANIFEST]:
            (folder / MANIFEST).unlink()
    # Fails if the folder is not empty.
    with contextlib.suppress(OSError):
        folder.rmdir()


def _foreign(folder):
    """Return the reason for not replacing or removing a folder, or None."""
    if not folder.is_dir():
        return "is a file, not a folder"
    try:
        manifest = read_manifest(folder)
    except (ValueError, OSError):
        return f"is a folder without a {MANIFEST} of this program, so that it may contain your files"
    for path in folder.rglob("*"):
        if path != folder / MANIFEST and not _is_listed(path, folder, manifest):
            return f"contains {path.relative_to(folder)}, which is not listed in its {MANIFEST}"
    return None


def _is_listed(path, folder, manifest):
    return path.relative_to(folder).as_posix() in manifest["folders" if path.is_dir() else "files"]


def _aside(path):
    """Return the temporary path of a folder while it is replaced."""
    return path.with_name(f"{_REPLACED}{path.name}")


def _finish_exchange(path):
    """Restore the old folder if there is no new one, otherwise remove it. Foreign files are kept."""
    aside = _aside(path)
    is_complete = False
    with contextlib.suppress(ValueError, OSError):
        is_complete = all((aside / name).exists() for name in read_manifest(aside)["files"])
    if is_complete and not path.exists():
        os.rename(aside, path)
        _sync(path.parent)
    else:
        remove_listed(aside)


def _remove(path):
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
