"""Ledger of results: one file `rows/NAME.toml` per row, and `data.toml` with the data sets that they name.

    paper = "Hardt & Ma"                # or "Li et al."; without it, a run of this package
    order = 80                          # position in the table of the paper
    item = "Table 1"
    claim = "55 convolutions, 13.5M parameters"
    commands = ["trainers.cifar --dataset cifar10 --data-dir DATA --out OUT"]    # and/or:
    tests = ["tests/models/test_cifar.py"]
    rests_on = ["quick"]                # rows on which it depends; they are run if it has no command
    exit_code = 1                       # exit code of the last command, if not 0
    seeds = [0]
    data = "cifar10"                    # a data set of data.toml
    versions, hardware, date, minutes or seconds, cost (text)
    measured = "{test error} after ..."    # Markdown; a name in braces is replaced by the number of that name
    verdict = "exact"
    figure = "figures/quick.png"        # below docs/
    model_card = "model_cards/fast"     # a folder with a README.md
    notes = "..."                       # Markdown

    [[numbers]]
    name = "test error"
    value = 21.49                       # missing: not recorded yet
    unit = "%"
    tolerance = 1.0                     # absolute; or `factor = 2`: the ratio is between 1/2 and 2
    file, key, where, pattern, take, times, base    # see `trainers.reproduce.numbers`

    [weights]
    sha256 = "93e0..."                  # see `trainers.reproduce.weights`; the first digits are sufficient
    note = "..."

In commands, OUT is the folder of the run and DATA the folder of the data sets. Values that were not recorded are
missing.
"""

import dataclasses
import decimal
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any

from trainers.cli.arguments import UsageError

FOLDER = pathlib.Path(__file__).resolve().parent
NOT_RECORDED = "not recorded"
PAPERS = ("Hardt & Ma", "Li et al.")
# Minutes in a budget for the cost "seconds" without a number.
FEW_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Number:
    """Number of a row.

    Attributes:
        name: name of the number.
        value: recorded value with its digits; None if not recorded yet.
        unit: unit of the value.
        tolerance: largest difference of another run.
        factor: largest ratio of another run, instead of a tolerance.
        file: source of the number, relative to the run's folder; "log": the output of the command; None: no source.
        key, where, pattern, take, times, base: selection of the number, see `trainers.reproduce.numbers`.
    """

    name: str
    value: decimal.Decimal | None = None
    unit: str = ""
    tolerance: decimal.Decimal | None = None
    factor: decimal.Decimal | None = None
    file: str | None = None
    key: str | None = None
    where: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pattern: str | None = None
    take: str = "last"
    times: float = 1.0
    base: float | None = None

    def shown(self) -> str:
        """Return the recorded value with its unit."""
        return NOT_RECORDED if self.value is None else f"{format_number(self.value)} {self.unit}".strip()

    def allowed(self) -> str:
        """Return the tolerance as text."""
        if self.factor is not None:
            return f"a factor of {format_number(self.factor)}"
        return "" if self.tolerance is None else f"{format_number(self.tolerance)} {self.unit}".strip()


@dataclasses.dataclass(frozen=True)
class Weights:
    """Checksum of a run's weights, or its first hexadecimal digits."""

    sha256: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class DataSet:
    """Data set of the ledger.

    Attributes:
        title: description.
        files: SHA-256 of each official file by name.
        digest: digest of the whole set in config.json, if known.
    """

    title: str
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    digest: str | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """Row of the ledger, with the fields of its file, see the module, and the name of the file."""

    name: str
    order: int
    item: str
    paper: str = ""
    claim: str = ""
    commands: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    rests_on: tuple[str, ...] = ()
    exit_code: int = 0
    seeds: tuple[int, ...] = ()
    data: str | None = None
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    hardware: str | None = None
    date: str | None = None
    minutes: decimal.Decimal | None = None
    seconds: decimal.Decimal | None = None
    cost: str = ""
    measured: str = ""
    verdict: str = ""
    figure: str | None = None
    model_card: str | None = None
    notes: str = ""
    numbers: tuple[Number, ...] = ()
    weights: Weights | None = None

    @property
    def cost_in_minutes(self) -> float | None:
        """Recorded cost of running the row again, or None."""
        if self.minutes is not None:
            return float(self.minutes)
        if self.seconds is not None:
            return float(self.seconds) / 60
        return FEW_SECONDS if self.cost == "seconds" else None

    def cost_in_words(self) -> str:
        """Return the recorded cost as text."""
        number = f"{format_number(self.minutes)} minutes" if self.minutes is not None else ""
        number = f"{format_number(self.seconds)} s" if self.seconds is not None else number
        return " ".join(part for part in (number, self.cost) if part) or NOT_RECORDED


class TomlNumber(decimal.Decimal):
    """Number of a file that stores its original text."""

    text: str

    def __new__(cls, text: str) -> "TomlNumber":
        number = super().__new__(cls, text)
        number.text = text
        return number


def format_number(number: decimal.Decimal) -> str:
    """Format a number as in its file, with commas in integers: 6.2e-12, 0.20, 50,000."""
    return number.text if isinstance(number, TomlNumber) else f"{number:,f}"


def load(folder: pathlib.Path = FOLDER) -> dict[str, Row]:
    """Load the rows by name, sorted by paper and position, with runs of this package last.

    Args:
        folder: folder that contains `rows/`.

    Raises:
        UsageError: a file is damaged, or names a row or data set that does not exist.
    """
    rows = [_row(path) for path in sorted((folder / "rows").glob("*.toml"))]
    places = {paper: place for place, paper in enumerate((*PAPERS, ""))}
    for row in rows:
        if row.paper not in places:
            raise UsageError(f"rows/{row.name}.toml: paper must be one of {', '.join(PAPERS)}. Received: {row.paper}")
    found = {row.name: row for row in sorted(rows, key=lambda row: (places[row.paper], row.order, row.name))}
    known = data_sets(folder)
    for row in rows:
        missing = [name for name in row.rests_on if name not in found]
        missing += [row.data] if row.data is not None and row.data not in known else []
        if missing:
            raise UsageError(f"rows/{row.name}.toml names {missing[0]}, which does not exist.")
    return found


def data_sets(folder: pathlib.Path = FOLDER) -> dict[str, DataSet]:
    """Load the data sets by name."""
    path = folder / "data.toml"
    return {name: _make(DataSet, values, path) for name, values in _read(path).items()}


def _row(path: pathlib.Path) -> Row:
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in _read(path).items()
    }
    values["numbers"] = tuple(_make(Number, each, path) for each in values.get("numbers", ()))
    if "weights" in values:
        values["weights"] = _make(Weights, values["weights"], path)
    row = _make(Row, {**values, "name": path.stem}, path)
    for number in row.numbers:
        if (
            number.file is not None
            and number.value is not None
            and (number.tolerance is None) == (number.factor is None)
        ):
            raise UsageError(f"{path}: the number {number.name!r} requires either a tolerance or a factor.")
        if (number.file is None) != (number.key is None and number.pattern is None):
            raise UsageError(f"{path}: the number {number.name!r} requires a file together with a key or a pattern.")
    return row


def _read(path: pathlib.Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"), parse_float=TomlNumber)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is damaged: {error}.") from error


_DECIMALS = ("value", "tolerance", "factor", "minutes", "seconds")


def _make(kind: Any, values: Mapping[str, Any], path: pathlib.Path) -> Any:
    known = {field.name: field for field in dataclasses.fields(kind)}
    unknown = [name for name in values if name not in known]
    missing = [
        name
        for name, field in known.items()
        if name not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if unknown or missing:
        wrong = f"unknown field {unknown[0]!r}" if unknown else f"the field {missing[0]!r} is missing"
        raise UsageError(f"{path}: {wrong}.")
    whole = {name: decimal.Decimal(value) for name, value in values.items() if name in _DECIMALS and type(value) is int}
    return kind(**{**values, **whole})
