"""Contents of folders, which a program must not change."""

import os
import pathlib


def tree(folder):
    """Return the objects below a folder by path: the content of a file, or the mode of a folder."""
    found = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = pathlib.Path(root, name)
            found[str(path)] = path.read_bytes() if path.is_file() else oct(path.stat().st_mode)
    return found
