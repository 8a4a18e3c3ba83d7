"""The records of a run: one JSON object per line, {"kind": ..., "step": ..., ...}.

The kinds are "train", "test", "curvature" and "diverged".
"""

import json
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

from trainers.cli.reading import decode_json
from trainers.run.contents import check_record


def encode(records: Iterable[dict[str, Any]]) -> str:
    """The records as they are written."""
    return "".join(json.dumps(record) + "\n" for record in records)


def read(path: pathlib.Path, report: Callable[[str], object]) -> list[dict[str, Any]]:
    """The records of a file that are whole; none where there is no file.

    A last line that a crash has cut off is left out without a word.

    Args:
        path: of the file.
        report: called with a sentence where other lines are damaged.
    """
    if not path.is_file():
        return []
    *lines, rest = path.read_bytes().split(b"\n")
    records, damaged = [], []
    for number, line in enumerate([*lines, rest] if rest else lines, start=1):
        record = _decode(line)
        if record is not None:
            records.append(record)
        elif number <= len(lines):
            damaged.append(number)
    if damaged:
        more = "" if len(damaged) == 1 else f", nor are {len(damaged) - 1} others"
        report(f"{path} is damaged: line {damaged[0]} is not a record{more}. What is left is used.")
    return records


def objects(path: pathlib.Path) -> list[dict[str, Any]]:
    """The JSON objects of any file with one in each line; none where there is no file.

    What a crash has cut off is left out without a word.
    """
    found = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            value = decode_json(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _decode(line):
    """A record, or None."""
    try:
        record = decode_json(line)
        check_record(record)
    except ValueError:
        return None
    return record
