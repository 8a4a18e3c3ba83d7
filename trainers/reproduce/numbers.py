"""Numbers of the ledger: recorded values, their places in the folder of a run, and comparison with another run."""

import csv
import dataclasses
import math
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

from trainers.cli.arguments import UsageError
from trainers.run.folder import read_lines, read_object

NOT_RECORDED = "not recorded"
HEADER = ("number", "recorded", "now", "tolerance", "")
_TAKE: dict[str, Callable[[Sequence[float]], float]] = {
    "last": lambda numbers: numbers[-1],
    "max": max,
    "mean": statistics.fmean,
}


@dataclasses.dataclass(frozen=True)
class Number:
    """Number of a row of the ledger."""

    name: str
    value: Decimal | int | None = None  # None: not recorded yet
    unit: str = ""
    tolerance: Decimal | int | None = None  # absolute
    factor: Decimal | int | None = None  # or: the ratio is between 1/factor and factor
    file: str | None = None  # .json, .jsonl or .csv in the folder of the run; None: the number is in no file
    key: str = ""  # column, or path such as `loaded.largest_error`
    where: Mapping[str, object] = dataclasses.field(default_factory=dict)  # values that select lines of .jsonl and .csv
    take: str = "last"  # "last", "max" or "mean" of the selected lines; each has a value for a mean, unless diverged
    times: float = 1.0  # factor that converts the value to the unit
    base: float | None = None  # base of a logarithm that is undone

    def shown(self) -> str:
        """Return the recorded value with its unit."""
        return NOT_RECORDED if self.value is None else f"{format_number(self.value)} {self.unit}".strip()

    def allowed(self) -> str:
        """Return the tolerance as text."""
        if self.factor is not None:
            return f"a factor of {format_number(self.factor)}"
        return "" if self.tolerance is None else f"{format_number(self.tolerance)} {self.unit}".strip()

    def agrees(self, value: float) -> bool:
        """Return True if a value is within the tolerance of the recorded one."""
        recorded = float(self.value if self.value is not None else math.nan)
        if self.factor is not None:
            factor = float(self.factor)
            return value == recorded or (value * recorded > 0 and 1 / factor <= value / recorded <= factor)
        # Decimal fractions have no exact binary form: 0.3 - 0.2 is above 0.1.
        return abs(value - recorded) <= float(self.tolerance or 0) * (1 + 1e-9)

    def compare(self, value: float | None) -> tuple[str, ...]:
        """Return the cells of a table with `HEADER`; the last one is "DIFFERS" for a missing or different value."""
        now = "missing" if value is None else f"{value:.6g} {self.unit}".strip()
        outcome = "within" if value is not None and self.agrees(value) else "DIFFERS"
        return self.name, self.shown(), now, self.allowed(), "nothing recorded" if self.value is None else outcome

    def read(self, folder: pathlib.Path) -> float | None:
        """Return the number of the run in a folder, or None if its file has no finite number there."""
        try:
            values = [_at(line, self.key) for line in _lines(folder / str(self.file), self.where)]
            # The first word of a cell such as "34.46 ± 1.19".
            words = [str(value).split()[:1] for value in values if value is not None]
            numbers = [float(word) for (word,) in filter(None, words)]
            if self.take == "mean" and len(numbers) < len(values):
                return None
            value = _TAKE[self.take](numbers)
            value = (value if self.base is None else float(self.base) ** value) * float(self.times)
        except (OSError, UsageError, TypeError, ValueError, IndexError, ArithmeticError, csv.Error):
            return None
        return value if math.isfinite(value) else None


def format_number(number: Decimal | int) -> str:
    """Format a number with all its digits, and with commas in integers: 6.2e-12, 0.20, 50,000."""
    return f"{number:,}" if isinstance(number, int) else str(number).lower()


def _lines(path: pathlib.Path, where: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    if path.suffix == ".csv":
        lines = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    else:
        lines = read_lines(path) if path.suffix == ".jsonl" else [read_object(path)]
    # In CSV files all values are text.
    return [line for line in lines if all(str(line.get(name)) == str(value) for name, value in where.items())]


def _at(value: object, key: str) -> object:
    """Return the value at a path such as `norms.mean_frobenius`, or None."""
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
