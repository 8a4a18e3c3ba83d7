"""Records of a run: one JSON object per line, {"kind": ..., "step": ..., ...}.

The kinds are "train", "test", "curvature" and "diverged".
"""

import json
import pathlib
from collections.abc import Callable, Iterable
from typing import Any


def encode(records: Iterable[dict[str, Any]]) -> str:
    """Return the records as text, one JSON object per line."""
    return "".join(json.dumps(record) + "\n" for record in records)


def read(path: pathlib.Path, report: Callable[[str], object]) -> list[dict[str, Any]]:
    """Return the complete records of a file; none if there is no file.

    A last line that a crash has truncated is ignored silently.

    Args:
        path: file.
        report: called with a message if other lines are damaged.
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
        report(f"{path} is damaged: line {damaged[0]} is not a record{more}. The remaining lines are used.")
    return records


def read_objects(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file with one per line; none if there is no file.

    A line that a crash has truncated is ignored silently.
    """
    found = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _decode(line):
    """Return a record, or None for a damaged line."""
    try:
        record = json.loads(line)
        is_record = isinstance(record["kind"], str) and record["step"] >= 0
    except (ValueError, TypeError, LookupError):
        return None
    return record if is_record else None
