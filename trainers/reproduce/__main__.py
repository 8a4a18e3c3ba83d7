"""Run rows of the ledger again and compare their numbers with the recorded ones."""

import dataclasses
import functools
import importlib.util
import pathlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from idmatters_tf._presentation.results import tabulate
from trainers.cli.arguments import UsageError, suggest
from trainers.cli.settings import make_parser, setting, with_defaults
from trainers.cli.startup import print_lines, print_message, run_program
from trainers.launch import as_module, child_environment
from trainers.reproduce.numbers import HEADER
from trainers.reproduce.rows import Row, expand_command, load
from trainers.run.signals import SignalHandler

EXAMPLES = """
examples:
  python -m trainers.reproduce --list                            all rows with their costs
  python -m trainers.reproduce quick                             one row, into runs/reproduce/quick
  python -m trainers.reproduce li-figure-5 theorem-3-2 --data-dir DATA
  python -m trainers.reproduce quick --check runs/quick          compare an existing run

To resume a row that was stopped, run the same command again. Costs refer to the machine that the row names.

exit codes: 0 all numbers within their tolerances; 1 numbers outside, or a command failed; 2 bad input; 130, 143 stopped
by Ctrl-C, SIGTERM
"""
ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class ReproduceSettings:
    """Rows to reproduce and folders."""

    rows: tuple[str, ...] = setting((), help="names of rows", metavar="ROW", positional=True, may_be_empty=True)
    list: bool = setting(False, help="list the rows with their costs")
    check: str | None = setting(None, help="compare this run with the row without running anything", metavar="RUN")
    data_dir: str | None = setting(None, help="folder of the data sets (default: that of TFDS)", metavar="DIR")
    out: str = setting("runs/reproduce", help="folder of the runs, one for each row", metavar="DIR")

    def __post_init__(self) -> None:
        if self.list == bool(self.rows):
            raise UsageError("Specify names of rows or --list.")
        if self.check is not None and len(self.rows) != 1:
            raise UsageError("--check requires the name of one row.")


parser = functools.partial(make_parser, "trainers.reproduce", __doc__, EXAMPLES, ReproduceSettings)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    settings = with_defaults(ReproduceSettings, parser().parse(argv))
    rows = load()
    out = pathlib.Path(settings.out)
    if settings.list:
        lines = [
            (row.name, ": ".join(filter(None, (row.paper, row.item))), row.date or "not run", _cost(row))
            for row in rows.values()
        ]
        print_lines(tabulate(("row", "item", "recorded", "cost"), lines))
        return 0
    for name in settings.rows:
        if name not in rows:
            raise UsageError(f"unknown row {name!r}.{suggest(name, rows)} See --list.")
        _check_files(rows[name])
    if settings.check is not None:
        return _report(rows[settings.rows[0]], pathlib.Path(settings.check))
    code = 0
    for name in settings.rows:
        code = max(code, reproduce(rows[name], rows, out, settings.data_dir))
        if code > 128:
            print_lines("stopped. To resume, run the same command again")
            break
    return code


def _cost(row: Row) -> str:
    return f"{row.cost_in_words()} (tests of the checkout)" if row.tests else row.cost_in_words()


def _check_files(row: Row) -> None:
    """Raise UsageError if the tests or scripts of a row are missing, as in an installed wheel."""
    scripts = [command.split()[0] for command in row.commands if command.split()[0].endswith(".py")]
    missing = [name for name in (*scripts, *row.tests) if not (ROOT / name).exists()]
    if missing:
        raise UsageError(f"{row.name} runs {missing[0]} of the checkout, which is not installed. Run it in a checkout.")
    if row.tests and importlib.util.find_spec("pytest") is None:
        raise UsageError(f"{row.name} runs tests, and pytest is not installed. Use pip install '.[test]'.")


def reproduce(row: Row, rows: Mapping[str, Row], out: pathlib.Path, data_dir: str | None) -> int:
    """Run a row, or the rows on which it depends, and compare its numbers. Returns the exit code."""
    if row.commands or row.tests:
        print_lines(f"== {row.name}: {row.item}; {row.cost_in_words()}")
        return _run_commands(row, out / row.name, data_dir) or _report(row, out / row.name)
    code = 0
    for name in row.rests_on:
        code = code or reproduce(rows[name], rows, out, data_dir)
    return code or _report(row, out / row.rests_on[0])


def _run_commands(row: Row, folder: pathlib.Path, data_dir: str | None) -> int:
    """Run the commands of a row, then its tests. The programs resume stopped runs and skip finished ones.

    Returns 0 if all exit codes are the recorded ones, 2 for a rejected command, 130 or 143 after a signal, otherwise 1.
    """
    commands = [expand_command(command, folder, data_dir) for command in row.commands]
    commands += [["-m", "pytest", "-q", *row.tests]] if row.tests else []
    for number, words in enumerate(commands, start=1):
        code = _run(words)
        expected = row.exit_code if number == len(row.commands) else 0
        if code != expected:
            print_message(f"error: {row.name}: exit code {code} instead of {expected}")
            return code if code in (2, 130, 143) else 1
    return 0


def _run(words: Sequence[str]) -> int:
    """Run a command and return its exit code."""
    if words[0].startswith("trainers."):
        words = as_module(words)
    else:
        words = [sys.executable, *(str(ROOT / word) if word.endswith(".py") else word for word in words)]
    print_lines(f"$ {shlex.join(['python', *words[1:]])}")
    process = subprocess.Popen(words, env=child_environment({}))
    # The process also receives Ctrl-C.
    with SignalHandler(lambda kind, _: process.terminate() if kind is signal.SIGTERM else None):
        code = process.wait()
    return code if code >= 0 else 128 - code


def _report(row: Row, folder: pathlib.Path) -> int:
    """Print the comparison of a run with a row. Returns the exit code."""
    numbers = [number for number in row.numbers if number.file is not None]
    values = [number.read(folder) for number in numbers]
    if values and all(value is None for value in values):
        raise UsageError(f"{folder} contains none of the numbers of {row.name}. Use a run of its command.")
    lines = [number.compare(value) for number, value in zip(numbers, values, strict=True)]
    if lines:
        print_lines(tabulate(HEADER, lines))
    outside = sum(line[-1] == "DIFFERS" for line in lines)
    outcome = "all numbers are within their tolerances" if lines else "ran with the recorded exit code"
    if outside:
        outcome = f"{outside} of {len(lines)} numbers differ by more than their tolerance"
    print_lines(f"{row.name}: {outcome}")
    return int(outside > 0)


if __name__ == "__main__":
    run_program(main)
