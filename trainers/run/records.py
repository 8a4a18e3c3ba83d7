"""Records of a run and tables of numbers.

A record is a JSON object in a line of its own, {"kind": ..., "step": ..., ...}. The kinds are "train", "test",
"curvature" and "diverged".
"""

import contextlib
import csv
import io
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from idmatters_tf._arguments import abbreviate
from idmatters_tf.checkpointing import write_atomically
from trainers.cli.arguments import UsageError

# Values of records that figures and comparisons use.
_NUMBERS = ("error", "top5_error", "learning_rate", "images_per_second", "seconds")


def encode(records: Iterable[dict[str, Any]]) -> str:
    """Return the records as text, one JSON object per line."""
    return "".join(json.dumps(record) + "\n" for record in records)


def read_object(path: pathlib.Path, check: Callable[[dict[str, Any]], None], remedy: str) -> dict[str, Any]:
    """Return the JSON object in a file.

    Args:
        path: the file.
        check: raises ValueError for an invalid object.
        remedy: sentence for error messages.

    Raises:
        UsageError: the file is damaged.
    """
    try:
        value = json.loads(path.read_bytes())
        if not isinstance(value, dict):
            raise ValueError("it contains no JSON object")
        check(value)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is damaged ({error}). {remedy}") from error
    return value


def check_result(result: Mapping[str, Any]) -> None:
    """Raise ValueError if a result is neither that of a training program nor that of an experiment."""
    verdicts = result.get("verdicts")
    if isinstance(verdicts, list) and all(isinstance(verdict, str) for verdict in verdicts):
        return
    for name in ("steps", "best_error", "best_step", "last_error", "parameters", "seconds"):
        if not _is_number(result.get(name)):
            raise ValueError(f"{name} must be a number, received {abbreviate(result.get(name))}")
    if not _is_number(result.get("last_top5_error", 0)):
        raise ValueError("last_top5_error must be a number")


def read_records(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return the records in a file; none if there is no file.

    Damaged lines, such as a last line that a crash has truncated, and invalid records are ignored.
    """
    records = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and _is_record(record):
                records.append(record)
    return records


def _is_record(record: Mapping[str, Any]) -> bool:
    required = {"train": ("step", "error"), "test": ("step", "error")}.get(str(record.get("kind")), ("step",))
    used = (*required, *{*_NUMBERS}.intersection(record))
    return isinstance(record.get("kind"), str) and all(_is_number(record.get(name)) for name in used)


def _is_number(value: Any) -> bool:
    # Neither infinite nor NaN, nor an integer that is no float.
    return type(value) in (int, float) and abs(value) < 1e300


def write_csv(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the same keys atomically as a CSV file. None is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())
