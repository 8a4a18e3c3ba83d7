"""Comparison of the numbers of a row with those in the folder of a run.

- `file` with suffix .json: `key` is a path such as `loaded.largest_error`.
- `file` with suffix .jsonl or .csv: `key` selects the values of the lines that match `where`. `take` is "last", "max"
  or "mean". The mean exists only if each line has a value, which a diverged run lacks.
- `pattern`, for any file: a regular expression whose group is the number; the last match counts.
- `base`: base of a logarithm that is undone. `times`: factor that converts the value to the unit.
"""

import csv
import json
import math
import pathlib
import re
import statistics
from typing import Any

from trainers.reproduce.rows import Number
from trainers.run.records import read_records

HEADER = ("number", "recorded", "now", "tolerance", "")
_TAKE = {
    "last": lambda numbers: numbers[-1],
    "max": max,
    "mean": statistics.fmean,
}


def compare(number: Number, value: float | None) -> tuple[str, ...]:
    """Return the cells of a number in the table with `HEADER`. The last one is "DIFFERS" outside the tolerance.

    Args:
        number: recorded number.
        value: number of another run; None if it is missing.
    """
    now = "missing" if value is None else f"{value:.6g} {number.unit}".strip()
    outcome = "within" if value is not None and agrees(number, value) else "DIFFERS"
    outcome = "nothing recorded" if number.value is None else outcome
    return number.name, number.shown(), now, number.allowed(), outcome


def agrees(number: Number, value: float) -> bool:
    """Return True if a value is within the tolerance of the recorded one."""
    recorded = float(number.value if number.value is not None else math.nan)
    if number.factor is not None:
        factor = float(number.factor)
        return value == recorded or (value * recorded > 0 and 1 / factor <= value / recorded <= factor)
    # Decimal fractions have no exact binary form: 0.3 - 0.2 is above 0.1.
    return abs(value - recorded) <= float(number.tolerance or 0) * (1 + 1e-9)


def read_value(number: Number, folder: pathlib.Path) -> float | None:
    """Return a number of a run, or None if the file is missing or does not contain a finite number there.

    Args:
        number: number of a row with a file; "log" is the file FOLDER.log with the output of the commands.
        folder: folder of the run.
    """
    path = folder.with_name(f"{folder.name}.log") if number.file == "log" else folder / str(number.file)
    if not path.is_file():
        return None
    try:
        values = _values(path, number)
        numbers = [float(value) for value in values if value not in (None, "")]
        if not numbers or (number.take == "mean" and len(numbers) < len(values)):
            return None
        value = _TAKE[number.take](numbers)
        value = (value if number.base is None else float(number.base) ** value) * float(number.times)
    except (TypeError, ValueError, ArithmeticError, csv.Error):
        return None
    return value if math.isfinite(value) else None


def _values(path: pathlib.Path, number: Number) -> list[Any]:
    if number.pattern is not None:
        text = path.read_text(encoding="utf-8", errors="replace")
        return [match[1].replace(",", "") for match in re.finditer(number.pattern, text)]
    if path.suffix == ".csv":
        lines: list[Any] = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    else:
        lines = read_records(path) if path.suffix == ".jsonl" else [json.loads(path.read_bytes())]
    # In CSV files all values are text.
    chosen = [line for line in lines if all(str(line.get(name)) == str(value) for name, value in number.where.items())]
    return [_at(line, number.key or "") for line in chosen]


def _at(value: Any, key: str) -> Any:
    """Return the value at a path such as `norms.mean_frobenius`, or None."""
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
