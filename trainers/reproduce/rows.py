"""The ledger: a file `rows/NAME.toml` for each of its rows, and `data.toml` for the data sets that they name.

    paper = "Hardt & Ma"                # or "Li et al."; without it, a run of this package's own
    order = 80                          # its place in its paper's table
    item = "Table 1"
    claim = "55 convolutions, 13.5M parameters"
    commands = ["trainers.cifar --dataset cifar10 --data-dir DATA --out OUT"]    # and, or instead:
    tests = ["tests/models/test_cifar.py"]
    rests_on = ["quick"]                # rows whose runs it rests on; they are run where it has no command of its own
    exit_code = 1                       # how the last command ends, where that is not 0
    seeds = [0]
    data = "cifar10"                    # of data.toml
    versions, hardware, date, minutes or seconds, cost (in words)
    measured = "{test error} after ..."    # Markdown; a name in braces stands for the number of that name
    verdict = "exact"
    figure = "figures/quick.png"        # below docs/
    model_card = "model_cards/fast"     # a folder with a README.md
    notes = "..."                       # Markdown

    [[numbers]]
    name = "test error"
    value = 21.49                       # absent: not recorded yet
    unit = "%"
    tolerance = 1.0                     # of the value itself; or `factor = 2`: the ratio is between 1/2 and 2
    file, key, where, pattern, take, times, base    # see `trainers.reproduce.numbers`

    [weights]
    sha256 = "93e0..."                  # see `trainers.reproduce.weights`; its first digits will do
    note = "..."

In commands OUT stands for the run's folder and DATA for the folder of the data sets. What was never recorded is absent.
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
# What "seconds", without a number, counts as in a budget.
FEW_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Number:
    """A number of a row.

    Attributes:
        name: what it is.
        value: as it was recorded, digit for digit; None: not recorded yet.
        unit: of the value.
        tolerance: how far another run may be from it.
        factor: the largest ratio to it, instead of a tolerance.
        file: where it is read, relative to the run's folder; "log": from what the command prints. None: nowhere.
        key, where, pattern, take, times, base: how it is read, see `trainers.reproduce.numbers`.
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
        """The recorded value with its unit."""
        return NOT_RECORDED if self.value is None else f"{plain(self.value)} {self.unit}".strip()

    def allowed(self) -> str:
        """The tolerance in words."""
        if self.factor is not None:
            return f"a factor of {plain(self.factor)}"
        return "" if self.tolerance is None else f"{plain(self.tolerance)} {self.unit}".strip()


@dataclasses.dataclass(frozen=True)
class Weights:
    """The checksum of a run's weights, or its first hexadecimal digits."""

    sha256: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A data set.

    Attributes:
        title: in words.
        files: the SHA-256 of each official file, by name.
        digest: what config.json says of the whole set, where that is known.
    """

    title: str
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    digest: str | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the ledger; the fields are those of its file, see the module, and `name`, that of the file."""

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
        """What it costs to run it again, as far as that was recorded."""
        if self.minutes is not None:
            return float(self.minutes)
        if self.seconds is not None:
            return float(self.seconds) / 60
        return FEW_SECONDS if self.cost == "seconds" else None

    def cost_in_words(self) -> str:
        """The same for people."""
        number = f"{plain(self.minutes)} minutes" if self.minutes is not None else ""
        number = f"{plain(self.seconds)} s" if self.seconds is not None else number
        return " ".join(part for part in (number, self.cost) if part) or NOT_RECORDED


class Written(decimal.Decimal):
    """A number of a file that knows how it is written there."""

    text: str

    def __new__(cls, text: str) -> "Written":
        number = super().__new__(cls, text)
        number.text = text
        return number


def plain(number: decimal.Decimal) -> str:
    """A number as it is written in its file, whole ones with commas: 6.2e-12, 0.20, 50,000."""
    return number.text if isinstance(number, Written) else f"{number:,f}"


def load(folder: pathlib.Path = FOLDER) -> dict[str, Row]:
    """The rows by name, paper by paper in the order of their tables, the package's own runs last.

    Args:
        folder: holds `rows/`.

    Raises:
        UsageError: a file is damaged, or names what does not exist.
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
    """The data sets by name."""
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
            raise UsageError(f"{path}: the number {number.name!r} needs either a tolerance or a factor.")
        if (number.file is None) != (number.key is None and number.pattern is None):
            raise UsageError(f"{path}: the number {number.name!r} needs a file together with a key or a pattern.")
    return row


def _read(path: pathlib.Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Written)
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
        wrong = f"there is no field {unknown[0]!r}" if unknown else f"the field {missing[0]!r} is missing"
        raise UsageError(f"{path}: {wrong}.")
    whole = {name: decimal.Decimal(value) for name, value in values.items() if name in _DECIMALS and type(value) is int}
    return kind(**{**values, **whole})
