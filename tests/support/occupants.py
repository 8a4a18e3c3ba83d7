"""Foreign objects at the paths of outputs, which a program must not change.

Each function creates an object at a path.
"""

import os
import pathlib

from idmatters_tf.checkpointing import replacing
from idmatters_tf.checkpointing.files import MANIFEST


def tree(folder):
    """Return the objects below a folder by path: the content of a file, or the mode of a folder."""
    found = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = pathlib.Path(root, name)
            found[str(path)] = path.read_bytes() if path.is_file() else oct(path.stat().st_mode)
    return found


def fill(folder, text):
    folder.mkdir()
    (folder / "variables").mkdir()
    (folder / "assets").mkdir()
    (folder / "saved_model.pb").write_text(text)
    (folder / "variables" / "variables.index").write_text(text)


def write_folder(path, text="new"):
    with replacing(path, folder=True) as beside:
        fill(beside, text)


def write_file(path):
    path.write_text("mine")


def _folder(path):
    path.mkdir()


def _folder_with_a_file(path):
    path.mkdir()
    (path / "thesis.txt").write_text("mine")


def _old_export(path):
    fill(path, "old")


def _other_manifest(path):
    fill(path, "old")
    (path / MANIFEST).write_text('{"name": "an app", "files": ["saved_model.pb"]}')


def _foreign_file(path):
    write_folder(path)
    (path / "variables" / "notes.txt").write_text("mine")


def _foreign_folder(path):
    write_folder(path)
    (path / "mine").mkdir()


NO_FILES = [_folder, _folder_with_a_file, _old_export]
NO_FOLDERS = [write_file, *NO_FILES, _other_manifest, _foreign_file, _foreign_folder]
