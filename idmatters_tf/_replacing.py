"""Atomic replacement of files and folders, also if the process is killed.

The new content is written to a temporary path in the same folder, flushed to disk and renamed. Only objects that
`idmatters_tf._ownership` allows are replaced: a regular file by a file, a folder with a manifest by a folder.

POSIX has no system call that replaces a folder with contents. A folder is therefore replaced in three steps: the old
one is renamed to `.replaced-NAME`, the new one receives its name, and the old one is removed. `remove_unfinished` and
the next replacement of the same folder complete or revert an exchange that was interrupted by a kill.
"""

import contextlib
import os
import pathlib
import re
import shutil
import stat
from collections.abc import Iterable, Iterator

from idmatters_tf._locking import check_held
from idmatters_tf._ownership import (
    MANIFEST,
    REPLACED,
    PathOccupied,
    check_replaceable,
    find_mode,
    is_complete,
    remove_own,
    temporary_path,
    write_manifest,
)

_WRITING = ".writing-"
_UNFINISHED = re.compile(r"\.writing-[0-9]+-.+", re.DOTALL)


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
    check_replaceable(path, folder=folder)
    beside = path.with_name(f"{_WRITING}{os.getpid()}-{path.name}")
    try:
        _remove(beside)
        if folder:
            _finish_exchange(path)
        yield beside
        if folder and not (beside / MANIFEST).exists():
            write_manifest(beside)
        _flush(beside)
        # The block may have taken minutes.
        check_held(path)
        check_replaceable(path, folder=folder)
        if folder:
            _exchange(beside, path)
        else:
            os.replace(beside, path)
            _sync(path.parent)
    finally:
        _remove(beside)


def write_atomically(path: str | os.PathLike, content: str | bytes) -> None:
    """Write a file of text (UTF-8) or bytes, see `replacing`."""
    with replacing(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def updating(folder: str | os.PathLike, names: Iterable[str] = ()) -> Iterator[pathlib.Path]:
    """Yield an empty folder for files, which replace those of the same names in `folder` after the block has succeeded.

    Each file is replaced atomically, first those in `names` in this order. All other files of `folder` are kept.

    Args:
        folder: an existing folder.
        names: names of the files that are known before the block.

    Raises:
        PathOccupied: the object at one of the names is not a file. Nothing is changed.
        OSError: a file could not be written.
    """
    folder, names = pathlib.Path(folder), list(names)
    check_held(folder)
    for name in names:
        check_replaceable(folder / name)
    beside = folder / f"{_WRITING}{os.getpid()}-files"
    try:
        _remove(beside)
        beside.mkdir()
        yield beside
        written = sorted(path.name for path in beside.iterdir())
        written.sort(key=lambda name: names.index(name) if name in names else len(names))
        _flush(beside)
        check_held(folder)
        for name in written:
            check_replaceable(folder / name)
        for name in written:
            os.replace(beside / name, folder / name)
        _sync(folder)
    finally:
        _remove(beside)


def remove_unfinished(folder: str | os.PathLike) -> None:
    """Remove unfinished files of killed processes in a folder, and complete or revert their replacements.

    The caller must be the only process that writes to the folder.
    """
    folder = pathlib.Path(folder)
    for path in [*folder.glob(f"{_WRITING}*")]:
        if _UNFINISHED.fullmatch(path.name):
            _remove(path)
    for path in [*folder.glob(f"{REPLACED}?*")]:
        _finish_exchange(folder / path.name.removeprefix(REPLACED))


def _exchange(new, path):
    """Replace a folder, which need not exist, by another one."""
    if find_mode(path) is None:
        os.rename(new, path)
        _sync(path.parent)
        return
    aside = temporary_path(path)
    os.rename(path, aside)
    try:
        _sync(path.parent)
        os.rename(new, path)
        _sync(path.parent)
    except BaseException:
        if find_mode(path) is None:
            os.rename(aside, path)
        raise
    remove_own(aside)


def _finish_exchange(path):
    """Restore the old folder if there is no new one, otherwise remove it. Foreign files are kept."""
    aside = temporary_path(path)
    if find_mode(aside) is None:
        return
    if find_mode(path) is not None:
        remove_own(aside)
    elif is_complete(aside):
        os.rename(aside, path)
        _sync(path.parent)
    else:
        # Its removal was interrupted, unless it contains foreign files.
        with contextlib.suppress(PathOccupied):
            check_replaceable(path, folder=True)
            remove_own(aside)


def _remove(path):
    mode = find_mode(path)
    if mode is not None and stat.S_ISDIR(mode):
        shutil.rmtree(path, ignore_errors=True)
    elif mode is not None:
        path.unlink(missing_ok=True)


def _flush(path):
    if path.is_dir():
        for inner in path.iterdir():
            _flush(inner)
    _sync(path)


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
