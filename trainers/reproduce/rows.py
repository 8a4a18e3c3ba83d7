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
    versions, hardware, date, minutes, cost (text)
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
    sha256 = "93e0..."                  # of all tensors of the last checkpoint, sorted by name
    note = "..."

In commands, OUT is the folder of the run and DATA the folder of the data sets. Values that were not recorded are
missing.
"""

import dataclasses
import os
import pathlib
import shlex
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from trainers.cli.arguments import UsageError

FOLDER = pathlib.Path(__file__).resolve().parent / "rows"
NOT_RECORDED = "not recorded"
PAPERS = ("Hardt & Ma", "Li et al.")


@dataclasses.dataclass(frozen=True)
class Number:
    """Number of a row: the recorded value, the tolerance, and its place in a run, see the module.

    `file` is relative to the run's folder; "log" is the output of the command; None: no place.
    """

    name: str
    value: Decimal | int | None = None
    unit: str = ""
    tolerance: Decimal | int | None = None
    factor: Decimal | int | None = None
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
    minutes: Decimal | int | None = None
    cost: str = ""
    measured: str = ""
    verdict: str = ""
    figure: str | None = None
    model_card: str | None = None
    notes: str = ""
    numbers: tuple[Number, ...] = ()
    weights: Mapping[str, str] | None = None

    def cost_in_words(self) -> str:
        """Return the recorded cost as text."""
        number = f"{format_number(self.minutes)} minutes" if self.minutes is not None else ""
        return " ".join(part for part in (number, self.cost) if part) or NOT_RECORDED


def format_number(number: Decimal | int) -> str:
    """Format a number with all its digits, and with commas in integers: 6.2e-12, 0.20, 50,000."""
    return f"{number:,}" if isinstance(number, int) else str(number).lower()


def load(folder: pathlib.Path = FOLDER) -> dict[str, Row]:
    """Load the rows by name, sorted by paper and position, with runs of this package last.

    Args:
        folder: folder of the files.

    Raises:
        UsageError: a file is damaged.
    """
    rows = []
    for path in folder.glob("*.toml"):
        try:
            read = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal).items()
            values: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in read}
            values["numbers"] = tuple(Number(**number) for number in values.get("numbers", ()))
            rows.append(Row(**values, name=path.stem))
        except (tomllib.TOMLDecodeError, TypeError) as error:
            raise UsageError(f"{path} is damaged: {error}.") from error
    places = {paper: place for place, paper in enumerate((*PAPERS, ""))}
    return {row.name: row for row in sorted(rows, key=lambda row: (places[row.paper], row.order, row.name))}


def expand_command(command: str, folder: str | os.PathLike, data_dir: str | None) -> list[str]:
    """Split a row's command into words, with OUT and DATA replaced.

    Args:
        command: command of the row.
        folder: replacement of OUT, also in OUT/NAME.
        data_dir: replacement of DATA, also in DATA/NAME; None removes --data-dir, so that the program uses the folder
            of TensorFlow Datasets.
    """
    words = shlex.split(command)
    if data_dir is None:
        places = [place for place, word in enumerate(words) if word.split("/")[0] == "DATA"]
        words = [word for place, word in enumerate(words) if place not in places and place + 1 not in places]
    named = {"DATA": data_dir or "", "OUT": str(folder)}
    return ["/".join([named.get(first, first), *inside]) for first, *inside in (word.split("/") for word in words)]


def format_commands(row: Row, folder: str = "OUT", data_dir: str | None = "DATA") -> list[str]:
    """Return the command lines of a row.

    Args:
        row: row of the ledger; its tests are the last command.
        folder: replacement of OUT.
        data_dir: replacement of DATA.
    """
    lines = []
    for command in row.commands:
        words = expand_command(command, folder, data_dir)
        lines.append(shlex.join(["python", *(["-m"] if words[0].startswith("trainers.") else []), *words]))
    return lines + ([f"python -m pytest {' '.join(row.tests)}"] if row.tests else [])
