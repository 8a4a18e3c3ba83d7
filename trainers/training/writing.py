"""Reasons and remedies for files that could not be written, for errors of all libraries."""

import errno
import os
import pathlib
import re
import shutil
from typing import Any

import tensorflow as tf

FIX = "Fix this"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}
_ERRORS = (OSError, tf.errors.OpError)
# TensorFlow and HDF5 include the system's message in their own.
_FULL_IN_WORDS = re.compile("no space left on device|quota exceeded|file too large", re.IGNORECASE)
_FORBIDDEN_IN_WORDS = re.compile("read-only file system|permission denied|not permitted", re.IGNORECASE)


def why_not_written(error: Any, folder: str | os.PathLike) -> tuple[str, str] | None:
    """Return the reason why a file could not be written and the remedy, or None for errors with other causes.

    Args:
        error: exception raised while files were written.
        folder: folder of the files.

    Returns:
        `(reason, remedy)` without final periods.
    """
    if (reason := _reason(error, _FULL, _FULL_IN_WORDS)) is not None:
        return f"{reason} ({_disk(pathlib.Path(folder))})", "Make room there"
    if (reason := _reason(error, _FORBIDDEN, _FORBIDDEN_IN_WORDS)) is not None:
        return f"{reason} in {folder}", "Make the folder writable"
    if isinstance(error, OSError):
        return error.strerror or str(error), FIX
    if isinstance(error, tf.errors.OpError):
        # TensorFlow adds the operation and the file to the system's message.
        return str(error.message).strip().splitlines()[0].split(" [Op:")[0].rsplit("; ", 1)[-1], FIX
    return None


def _reason(error, codes, words):
    if isinstance(error, OSError) and error.errno in codes:
        return error.strerror
    # HDF5 closes files with a RuntimeError or a ValueError.
    found = words.search(str(error)) if isinstance(error, (*_ERRORS, RuntimeError, ValueError)) else None
    return found[0] if found else None


def _disk(folder):
    """Return a description of the file system of a folder, which may not exist yet, and its free space."""
    existing = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    mount = next(each for each in (existing.resolve(), *existing.resolve().parents) if os.path.ismount(each))
    return f"the file system {mount} has {shutil.disk_usage(existing).free / 1e6:,.1f} MB left"
