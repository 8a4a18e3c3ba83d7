"""Foreign objects at the paths of outputs, which a program must not change.

Each function creates an object at a path, and the target of a link in the folder `elsewhere`.
"""

import os
import pathlib
import socket

from idmatters_tf._ownership import MANIFEST
from idmatters_tf._replacing import replacing


def tree(folder):
    """Return the objects below a folder by path: the content of a file, the target of a link, or the mode."""
    found = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = pathlib.Path(root, name)
            if path.is_symlink():
                found[str(path)] = f"-> {os.readlink(path)}"
            else:
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


def write_file(path, elsewhere):
    path.write_text("mine")


def _folder(path, elsewhere):
    path.mkdir()


def _folder_with_a_file(path, elsewhere):
    path.mkdir()
    (path / "thesis.txt").write_text("mine")


def _old_export(path, elsewhere):
    fill(path, "old")


def _other_manifest(path, elsewhere):
    fill(path, "old")
    (path / MANIFEST).write_text('{"name": "an app", "files": ["saved_model.pb"]}')


def _manifest_that_is_a_link(path, elsewhere):
    write_folder(path)
    os.rename(path / MANIFEST, elsewhere / "m")
    (path / MANIFEST).symlink_to(elsewhere / "m")


def _foreign_file(path, elsewhere):
    write_folder(path)
    (path / "variables" / "notes.txt").write_text("mine")


def _foreign_folder(path, elsewhere):
    write_folder(path)
    (path / "mine").mkdir()


def _link_for_a_listed_file(path, elsewhere):
    write_folder(path)
    os.rename(path / "saved_model.pb", elsewhere / "mine")
    (path / "saved_model.pb").symlink_to(elsewhere / "mine")


def _link_to_a_file(path, elsewhere):
    (elsewhere / "mine").write_text("mine")
    path.symlink_to(elsewhere / "mine")


def _link_to_nothing(path, elsewhere):
    path.symlink_to(elsewhere / "nothing")


def _link_to_a_folder(path, elsewhere):
    write_folder(elsewhere / "mine")
    path.symlink_to(elsewhere / "mine")


def _pipe(path, elsewhere):
    os.mkfifo(path)


def _socket(path, elsewhere):
    # The path of a socket has at most 107 characters.
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as each:
            each.bind(path.name)
    finally:
        os.chdir(here)


LINKS = [_link_to_a_file, _link_to_nothing, _link_to_a_folder]
NO_FILES = [_folder, _folder_with_a_file, _old_export, *LINKS, _pipe, _socket]
NO_FOLDERS = [write_file, *NO_FILES, _other_manifest, _manifest_that_is_a_link, _foreign_file, _foreign_folder]
NO_FOLDERS += [_link_for_a_listed_file]
