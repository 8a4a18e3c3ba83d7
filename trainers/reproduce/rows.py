"""Ledger of results: one file `rows/NAME.toml` for each `Row`, and `data.toml` with the data sets that they name.

In commands, OUT is the folder of the run and DATA the folder of the data sets. Values that were not recorded are
missing. An example:

    item = "Table 1"
    order = 80
    commands = ["trainers.cifar --dataset cifar10 --data-dir DATA --out OUT"]
    measured = "{test error} after ..."

    [[numbers]]             # see `trainers.reproduce.numbers.Number`
    name = "test error"
    value = 21.49
    unit = "%"
    tolerance = 1.0
    file = "result.json"
    key = "last_error"
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
from trainers.reproduce.numbers import NOT_RECORDED, Number, format_number

FOLDER = pathlib.Path(__file__).resolve().parent / "rows"
PAPERS = ("Hardt & Ma", "Li et al.", "Bartlett et al.", "Zou et al.", "Yun et al.", "Marion et al.")


@dataclasses.dataclass(frozen=True)
class Row:
    """Row of the ledger, with the fields of its file and the file's name."""

    name: str
    order: int  # position in the table of the paper
    item: str
    page: str = ""  # row on whose page of the site this row is shown, if it has no own page
    paper: str = ""  # one of `PAPERS`, or empty for a run of this package
    claim: str = ""  # of the paper
    commands: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()  # files of tests, run after the commands
    rests_on: tuple[str, ...] = ()  # rows on which it depends; they are run if it has no command
    exit_code: int = 0  # of the last command
    seeds: tuple[int, ...] = ()
    data: str | None = None  # a data set of data.toml
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    hardware: str | None = None
    date: str | None = None
    minutes: Decimal | int | None = None
    cost: str = ""  # text after the minutes
    measured: str = ""  # Markdown; a name in braces is replaced by the number of that name
    verdict: str = ""
    figure: str | None = None  # below docs/
    model_card: str | None = None  # a folder with a README.md
    notes: str = ""  # Markdown
    numbers: tuple[Number, ...] = ()
    weights: Mapping[str, str] | None = None  # sha256 of the weights, not compared, and a note

    def cost_in_words(self) -> str:
        """Return the recorded cost as text."""
        number = f"{format_number(self.minutes)} minutes" if self.minutes is not None else ""
        return " ".join(part for part in (number, self.cost) if part) or NOT_RECORDED


def load(folder: pathlib.Path = FOLDER) -> dict[str, Row]:
    """Load the rows by name, sorted by paper and position, with runs of this package last.

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
    papers = (*PAPERS, "")
    return {row.name: row for row in sorted(rows, key=lambda row: (papers.index(row.paper), row.order, row.name))}


def expand_command(command: str, folder: str | os.PathLike[str], data_dir: str | None) -> list[str]:
    """Split a row's command into words, with OUT and DATA replaced, also at the start of paths.

    Without a `data_dir`, --data-dir is removed, so that the program uses the folder of TensorFlow Datasets.
    """
    words = shlex.split(command)
    if data_dir is None:
        indices = {index for index, word in enumerate(words) if word.split("/")[0] == "DATA"}
        words = [word for index, word in enumerate(words) if not {index, index + 1} & indices]
    named = {"DATA": data_dir or "", "OUT": str(folder)}
    return ["/".join([named.get(first, first), *inside]) for first, *inside in (word.split("/") for word in words)]


def format_commands(row: Row, folder: str = "OUT", data_dir: str | None = "DATA") -> list[str]:
    """Return the command lines of a row, the last one for its tests, with OUT and DATA replaced."""
    lines = [expand_command(command, folder, data_dir) for command in row.commands]
    lines = [["-m", *words] if words[0].startswith("trainers.") else words for words in lines]
    lines += [["-m", "pytest", *row.tests]] if row.tests else []
    return [shlex.join(["python", *words]) for words in lines]
