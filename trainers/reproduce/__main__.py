"""Runs a row of the ledger again, and compares its numbers with the recorded ones."""

import dataclasses
import json
import pathlib
import re
import time
from collections.abc import Mapping, Sequence

from idmatters_tf import _environment
from idmatters_tf._replacing import write_atomically
from trainers.cli.arguments import Parser, RunError, UsageError
from trainers.cli.reading import read_json
from trainers.cli.settings import add_options, parse, setting, with_defaults
from trainers.cli.startup import explained, run_program, say, tell
from trainers.reproduce.numbers import HEADER, Comparison, compare
from trainers.reproduce.rows import Row, data_sets, load
from trainers.reproduce.running import Stopped, log_of, other_files, run_again
from trainers.run.folder import Run

EXAMPLES = """
examples:
  python -m trainers.reproduce --list                            every row, what it costs, what has been reproduced
  python -m trainers.reproduce quick                             one row, into runs/reproduce/quick
  python -m trainers.reproduce li-figure-5 theorem-3-2 --data-dir DATA
  python -m trainers.reproduce --all --budget 10m --data-dir DATA     the cheapest first
  python -m trainers.reproduce quick --check runs/quick          compares a run that exists, and runs nothing

A row that was stopped goes on with the same command. Costs are those of the machine that the row names.

exit codes: 0 all numbers within their tolerances; 1 some are not, or a command failed; 2 bad input; 130, 143 stopped by
Ctrl-C, SIGTERM
"""

_UNITS = {"s": 1 / 60, "m": 1.0, "h": 60.0}
WITHIN, DIFFERS = "within", "differs"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is reproduced, and where."""

    rows: tuple[str, ...] = setting(
        (), help="names of rows, see --list", metavar="ROW", positional=True, may_be_empty=True
    )
    list: bool = setting(False, help="list the rows with their state and their cost")
    all: bool = setting(False, help="every row within --budget, the cheapest first")
    budget: str | None = setting(None, help="for --all: 90s, 10m or 2h by the recorded costs", metavar="TIME")
    check: str | None = setting(None, help="compare this run with the row, without running anything", metavar="RUN")
    data_dir: str | None = setting(
        None, help="folder of the data sets (default: where TensorFlow Datasets keeps its data)", metavar="DIR"
    )
    out: str = setting("runs/reproduce", help="folder of the runs, one for each row", metavar="DIR")
    debug: bool = setting(False, help="show tracebacks")

    def __post_init__(self) -> None:
        if sum([self.list, self.all, bool(self.rows)]) != 1:
            raise UsageError("Name rows, or give either --list or --all.")
        if self.check is not None and len(self.rows) != 1:
            raise UsageError("--check compares a run with one row: name it.")
        if self.all != (self.budget is not None):
            raise UsageError("--all and --budget belong together: --all --budget 10m")
        if self.budget is not None:
            minutes(self.budget)


def parser() -> Parser:
    """The command line of this program."""
    parser = Parser(prog="python -m trainers.reproduce", description=__doc__, epilog=EXAMPLES)
    add_options(parser, Settings)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program; returns its exit code."""
    settings = with_defaults(Settings, parse(parser(), argv))
    rows, out = load(), pathlib.Path(settings.out)
    if settings.list:
        print(table(("row", "item", "recorded", "cost", "here"), [_listed(row, out) for row in rows.values()]))
        return 0
    if settings.check is not None:
        row, folder = chosen(rows, settings.rows)[0], pathlib.Path(settings.check)
        if not folder.is_dir():
            raise UsageError(f"--check {folder} is not a folder. Name the --out of a run.")
        return _report(row, folder)
    try:
        if settings.budget is not None:
            return _within_budget(rows, minutes(settings.budget), out, settings.data_dir)
        codes = [_attempt(row, rows, out, settings.data_dir) for row in chosen(rows, settings.rows)]
    except Stopped as stopped:
        print("stopped; the same command goes on")
        return stopped.code
    return max(codes)


def minutes(budget: str) -> float:
    """The minutes of a text such as 90s, 10m or 1.5h. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", budget)
    if match is None:
        raise UsageError(f"argument --budget: expected a time such as 90s, 10m or 2h, received {budget!r}")
    return float(match[1]) * _UNITS[match[2]]


def chosen(rows: Mapping[str, Row], names: Sequence[str]) -> list[Row]:
    """The rows of these names. Raises UsageError for others."""
    import difflib

    for name in names:
        if name not in rows:
            near = difflib.get_close_matches(name, rows, 1)
            raise UsageError(f"there is no row {name!r}.{f' Did you mean {near[0]!r}?' if near else ''} See --list.")
    return [rows[name] for name in dict.fromkeys(names)]


def reproduce(row: Row, rows: Mapping[str, Row], out: pathlib.Path, data_dir: str | None) -> int:
    """Runs a row again, or those that it rests on, and compares. Returns the exit code.

    Args:
        row: which one.
        rows: all of them.
        out: folder of the runs.
        data_dir: folder of the data sets, or None.
    """
    if not row.commands and not row.tests:
        if not row.rests_on:
            raise UsageError(f"{row.name} has nothing to run: {row.verdict or 'no command is recorded'}.")
        code = max([reproduce(rows[name], rows, out, data_dir) for name in row.rests_on])
        return max(code, _report(row, out / row.rests_on[0], out)) if row.numbers else code
    print(f"== {row.name}: {row.item}; {row.cost_in_words()}", flush=True)
    if row.data is not None and data_dir is not None:
        tell(*other_files(data_sets()[row.data], pathlib.Path(data_dir)))
    run_again(row, out / row.name, data_dir)
    return _report(row, out / row.name, out)


def _within_budget(rows: Mapping[str, Row], budget: float, out: pathlib.Path, data_dir: str | None) -> int:
    """The rows with a command and a known cost, the cheapest first, as long as the budget lasts."""
    began, codes = time.monotonic(), [0]
    known = [row for row in rows.values() if row.cost_in_minutes is not None and (row.commands or row.tests)]
    for row in sorted(known, key=lambda row: row.cost_in_minutes or 0):
        spent = (time.monotonic() - began) / 60
        if spent + (row.cost_in_minutes or 0) > budget:
            print(f"{row.name} and what costs more is left: {spent:.1f} of {budget:g} minutes are spent")
            break
        codes.append(_attempt(row, rows, out, data_dir))
    return max(codes)


def _attempt(row: Row, rows: Mapping[str, Row], out: pathlib.Path, data_dir: str | None) -> int:
    """`reproduce`, but what fails is said, so that the other rows have their turn. Returns the exit code."""
    try:
        return reproduce(row, rows, out, data_dir)
    except (RunError, UsageError) as error:
        sentence, code = explained(error)
        say(f"error: {sentence}")
        return code


def _report(row: Row, folder: pathlib.Path, out: pathlib.Path | None = None) -> int:
    """Prints how a run compares with a row, and keeps the outcome in `out`. Returns the exit code."""
    comparisons = compare(row, folder, log_of(folder))
    read = [each for each in comparisons if each.value is not None]
    if comparisons and not read:
        raise UsageError(f"{folder} holds none of the numbers of {row.name}: is it a run of its command?")
    tell(*_circumstances(row, folder))
    if comparisons:
        print(table(HEADER, [each.cells() for each in comparisons]))
    good = all(each.within is not False for each in comparisons)
    print(f"{row.name}: {_summary(row, comparisons)}")
    if out is not None:
        values = {each.number.name: each.value for each in comparisons}
        outcome = {"row": row.name, "state": WITHIN if good else DIFFERS, "numbers": values}
        write_atomically(out / f"{row.name}.json", json.dumps(outcome, indent=2) + "\n")
    return 0 if good else 1


def _summary(row: Row, comparisons: Sequence[Comparison]) -> str:
    compared = [each for each in comparisons if each.within is not None]
    if not compared:
        return "ran as it did when it was recorded" if not comparisons else "nothing is recorded to compare with"
    outside = [each for each in compared if not each.within]
    if outside:
        return f"{len(outside)} of {len(compared)} numbers differ by more than their tolerance"
    return f"all {len(compared)} numbers are within their tolerances"


def _circumstances(row: Row, folder: pathlib.Path) -> list[str]:
    """In what a run differs from the recorded one: versions, data, bits of the weights."""
    run, lines = Run(folder), []
    config = run.config() if run.exists() else {}
    now = config.get("versions") or _environment.versions()
    now.setdefault("tensorflow", now.get("tensorflow-cpu", "missing"))
    for package, version in row.versions.items():
        if not f"{now.get(package, 'missing')}.".startswith(f"{version}."):
            lines.append(f"{package} was {version}, is {now.get(package, 'missing')}: numbers may differ by rounding")
    known = data_sets()[row.data].digest if row.data is not None else None
    found = (config.get("data") or {}).get("digest")
    if config.get("program") == "trainers.cifar" and known is not None and found != known:
        lines.append(f"the data have the checksum {found}, not {known}: these are other images")
    if row.weights is not None:
        from trainers.reproduce.weights import weights_digest

        digest = weights_digest(folder) or "missing"
        same = digest.startswith(row.weights.sha256)
        lines.append(
            f"weights: {'the same bits as recorded' if same else 'other bits than recorded'} (SHA-256 {digest[:16]}"
            f"{'' if same else f' instead of {row.weights.sha256[:16]}: other threads, instructions or versions'})"
        )
    return lines


def _listed(row: Row, out: pathlib.Path) -> tuple[str, ...]:
    if not row.commands and not row.tests:
        state = "rests on others" if row.rests_on else "nothing to run"
    else:
        state = "yes" if row.date else "not run"
    here = ""
    if (out / f"{row.name}.json").is_file():
        here = _outcome(out / f"{row.name}.json")
    elif log_of(out / row.name).is_file():
        here = "begun"
    cost = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", row.cost_in_words())
    return row.name, f"{row.paper}: {row.item}" if row.paper else row.item, state, cost, here


def _outcome(path: pathlib.Path) -> str:
    """What came of a row that was run again: `WITHIN` or `DIFFERS`; "damaged" for a file that names neither."""
    try:
        outcome = read_json(path)
    except ValueError:
        outcome = None
    state = outcome.get("state") if isinstance(outcome, dict) else None
    return state if state in (WITHIN, DIFFERS) else "damaged"


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """An aligned table of text."""
    widths = [max(len(line[column]) for line in (header, *lines)) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (header, *lines)
    )


if __name__ == "__main__":
    run_program(main)
