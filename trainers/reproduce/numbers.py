"""Comparison of the numbers of a row with those in the folder of a run.

- `file` with suffix .json: `key` is a path such as `loaded.largest_error`.
- `file` with suffix .jsonl or .csv: `key` selects the values of the lines that match `where`. `take` is "last", "max",
  "ratio" (last over first) or "mean". The mean exists only if each line has a value, which a diverged run lacks.
- `pattern`, for any file: a regular expression whose group is the number; the last match counts.
- `base`: base of a logarithm that is undone. `times`: factor that converts the value to the unit.
"""

import csv
import dataclasses
import json
import math
import pathlib
import re
import statistics
from collections.abc import Sequence
from typing import Any

from trainers.reproduce.rows import Number, Row
from trainers.run.records import read_objects

LOG = "log"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Comparison of a recorded number with that of another run.

    Attributes:
        number: recorded number.
        value: number of the other run; None if it is missing.
        within: True if the two agree within the tolerance; None if no value is recorded.
    """

    number: Number
    value: float | None
    within: bool | None

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a row of the table."""
        number, value, recorded = self.number, self.value, self.number.value
        now = "missing" if value is None else f"{shown(value, number)} {number.unit}".strip()
        difference = ""
        if value is not None and recorded is not None:
            if number.factor is None:
                difference = f"{value - float(recorded):+.3g}"
            else:
                difference = f"x {value / float(recorded):.3g}" if recorded else ""
        word = {True: "within", False: "DIFFERS", None: "nothing recorded"}[self.within]
        return number.name, number.shown(), now, difference, number.allowed(), word


HEADER = ("number", "recorded", "now", "difference", "tolerance", "")


def compare(row: Row, folder: pathlib.Path, log: pathlib.Path) -> list[Comparison]:
    """Compare every number of a row that can be read from a run.

    Args:
        row: row of the ledger.
        folder: folder of the run.
        log: file with the output of the commands.
    """
    found = []
    for number in row.numbers:
        if number.file is None:
            continue
        value = read_value(number, folder, log)
        within = None
        if number.value is not None:
            within = value is not None and agrees(number, value)
        found.append(Comparison(number, value, within))
    return found


def agrees(number: Number, value: float) -> bool:
    """Return True if a value is within the tolerance of the recorded one."""
    recorded = float(number.value if number.value is not None else math.nan)
    if number.factor is not None:
        factor = float(number.factor)
        return value == recorded or (value * recorded > 0 and 1 / factor <= value / recorded <= factor)
    # Decimal fractions have no exact binary form: 0.3 - 0.2 is above 0.1.
    return abs(value - recorded) <= float(number.tolerance or 0) * (1 + 1e-9)


def read_value(number: Number, folder: pathlib.Path, log: pathlib.Path) -> float | None:
    """Return a number of a run, or None if the file is missing or does not contain a finite number there."""
    path = log if number.file == LOG else folder / str(number.file)
    if not path.is_file():
        return None
    if number.pattern is not None:
        text = path.read_text(encoding="utf-8", errors="replace")
        values = [match[1].replace(",", "") for match in re.finditer(number.pattern, text)]
    else:
        values = _values(path, number)
    taken = {
        "last": lambda numbers: numbers[-1],
        "max": max,
        "mean": statistics.fmean,
        "ratio": lambda numbers: numbers[-1] / numbers[0],
    }
    try:
        numbers = [float(value) for value in values if value not in (None, "")]
        if not numbers or (number.take == "mean" and len(numbers) < len(values)):
            return None
        value = taken[number.take](numbers)
        value = (value if number.base is None else float(number.base) ** value) * float(number.times)
    except (TypeError, ValueError, ArithmeticError):
        return None
    return value if math.isfinite(value) else None


def _values(path: pathlib.Path, number: Number) -> list[Any]:
    if path.suffix == ".json":
        try:
            return [_at(json.loads(path.read_bytes()), number.key or "")]
        except ValueError:
            return []
    if path.suffix == ".jsonl":
        lines: Sequence[Any] = read_objects(path)
    else:
        try:
            with open(path, newline="", encoding="utf-8") as stream:
                lines = list(csv.DictReader(stream))
        except (ValueError, csv.Error):
            return []
    chosen = [line for line in lines if all(_same(line.get(name), wanted) for name, wanted in number.where.items())]
    return [_at(line, number.key or "") for line in chosen]


def _at(value: Any, key: str) -> Any:
    """Return the value at a path such as `norms.mean_frobenius`, or None."""
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _same(found: Any, wanted: Any) -> bool:
    """Return True if a cell equals a value. In CSV files all values are text."""
    try:
        return float(found) == float(wanted)
    except (TypeError, ValueError, OverflowError):
        return str(found) == str(wanted)


def shown(value: float, number: Number) -> str:
    """Format a value with one digit more than the recorded one."""
    if number.value is None:
        return f"{value:.6g}"
    if value == int(value) and number.value == int(number.value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.{len(number.value.as_tuple().digits) + 1}g}"
