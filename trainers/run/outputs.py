"""Folders that programs write to.

A program writes only into a folder that it creates, that is empty except for hidden files, or that contains its mark, a
JSON file of the program. Inside such a folder it replaces its own files and folders by renaming.
"""

import json
import os
import pathlib
from typing import Any

from idmatters_tf.checkpointing import write_atomically
from trainers.cli.arguments import UsageError

# Marks of runs, model cards, exports to other folders and comparisons.
RUN, CARD, EXPORT, REPORT = "config.json", "training.json", "export.json", "report.json"


def check_output(folder: str | os.PathLike, mark: str) -> None:
    """Raise UsageError if a program must not write to a folder.

    Args:
        folder: folder that the option --out names.
        mark: name of the mark, which `write_mark` has written.
    """
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise UsageError(f"--out must be a folder, but {folder} is a file. Use another folder.")
    if list_names(folder) and not _is_mark(pathlib.Path(folder, mark)):
        raise UsageError(
            f"--out {folder} contains something other than files of this program (there is no {mark} of it). Use an "
            f"empty or new folder."
        )


def list_names(folder: str | os.PathLike) -> list[str]:
    """Return the names in a folder without those of hidden files, such as .lock; none if there is no folder."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [name for name in names if not name.startswith(".")]


def write_mark(folder: str | os.PathLike, mark: str, program: str, **values: Any) -> None:
    """Create a folder with the mark of a program, which contains its name and the values."""
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    write_atomically(pathlib.Path(folder, mark), json.dumps({"program": program, **values}, indent=2) + "\n")


def _is_mark(path: pathlib.Path) -> bool:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "program" in content
