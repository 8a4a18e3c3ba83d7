"""Files and folders that are replaced entirely or not at all, whenever the process is killed.

Something new is written beside its target, flushed to disk and then renamed. Only what `idmatters_tf._ownership` allows
is replaced: a regular file by a file, a folder with a manifest by a folder.

No system call of POSIX replaces a folder that holds files, so that a folder is replaced in three steps: the old one is
renamed to `.replaced-NAME`, the new one takes its name, and the old one is removed. `remove_unfinished` completes or
reverts an exchange that was interrupted by a kill, and so does the next replacement of the same folder.
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
    aside_of,
    check_replaceable,
    is_complete,
    mode_of,
    remove_own,
    write_manifest,
)

_WRITING = ".writing-"
_UNFINISHED = re.compile(r"\.writing-[0-9]+-.+", re.DOTALL)


@contextlib.contextmanager
def replacing(path: str | os.PathLike, *, folder: bool = False) -> Iterator[pathlib.Path]:
    """Yield a temporary path beside `path`, which takes the place of `path` once the block has succeeded.

    The block creates a file there, or with `folder` a folder, which receives a manifest if the block has not written
    one. The temporary name ends like that of `path`, for libraries that choose a format by the suffix. Readers see the
    old content or the new one, and nothing is left behind when the block raises.

    Args:
        path: may exist.
        folder: True for a folder, False for a file.

    Raises:
        PathOccupied: `path` holds something that must not be replaced; it is not touched.
        FolderLost: `path` is in a folder whose lock this process has lost.
        OSError: it could not be written.
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
        # Minutes may have passed.
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
    """Write a file of text (UTF-8) or bytes; see `replacing`."""
    with replacing(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def updating(folder: str | os.PathLike, names: Iterable[str] = ()) -> Iterator[pathlib.Path]:
    """Yield an empty folder for files, which replace those of the same names in `folder` once the block has succeeded.

    Each file is replaced atomically, in the order of `names`, the others after them. All other files of `folder` are
    kept.

    Args:
        folder: an existing folder.
        names: of the files, as far as they are known before the block.

    Raises:
        PathOccupied: one of the names holds something other than a file; nothing is touched.
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
    """Remove what killed processes have left in a folder, and complete or revert their replacements.

    To be called only by a process that alone writes there.
    """
    folder = pathlib.Path(folder)
    for path in [*folder.glob(f"{_WRITING}*")]:
        if _UNFINISHED.fullmatch(path.name):
            _remove(path)
    for path in [*folder.glob(f"{REPLACED}?*")]:
        _finish_exchange(folder / path.name.removeprefix(REPLACED))


def _exchange(new, path):
    """Put a folder in the place of another one, or of nothing."""
    if mode_of(path) is None:
        os.rename(new, path)
        _sync(path.parent)
        return
    aside = aside_of(path)
    os.rename(path, aside)
    try:
        _sync(path.parent)
        os.rename(new, path)
        _sync(path.parent)
    except BaseException:
        if mode_of(path) is None:
            os.rename(aside, path)
        raise
    remove_own(aside)


def _finish_exchange(path):
    """Put the old folder back if there is no new one, else remove it."""
    aside = aside_of(path)
    if mode_of(aside) is None:
        return
    if mode_of(path) is None and is_complete(aside):
        os.rename(aside, path)
        _sync(path.parent)
    else:
        remove_own(aside)


def _remove(path):
    mode = mode_of(path)
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
