"""Records of a run and tables of numbers.

A record is a JSON object in a line of its own, {"kind": ..., "step": ..., ...}. The kinds are "train", "test",
"curvature" and "diverged".
"""

import csv
import io
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from idmatters_tf.checkpointing import write_atomically


def encode(records: Iterable[dict[str, Any]]) -> str:
    """Return the records as text, one JSON object per line."""
    return "".join(json.dumps(record) + "\n" for record in records)


def read_objects(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file with one per line; none if there is no file.

    Damaged lines, such as a last line that a crash has truncated, are ignored.
    """
    objects = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            objects.append(value)
    return objects


def write_csv(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the same keys atomically as a CSV file. None is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())
