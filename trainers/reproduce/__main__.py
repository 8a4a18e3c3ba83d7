"""Run rows of the ledger again and compare their numbers with the recorded ones."""

import dataclasses
import json
import pathlib
import re
import time
from collections.abc import Mapping, Sequence

from idmatters_tf import _environment
from idmatters_tf.checkpointing import write_atomically
from trainers.cli.arguments import Parser, RunError, UsageError, suggest
from trainers.cli.settings import add_options, parse, setting, with_defaults
from trainers.cli.startup import explain_error, print_lines, print_message, run_program
from trainers.reproduce.numbers import HEADER, Comparison, compare
from trainers.reproduce.rows import Row, data_sets, load
from trainers.reproduce.running import Stopped, get_log_path, other_files, run_again
from trainers.run.folder import Run

EXAMPLES = """
examples:
  python -m trainers.reproduce --list                            all rows with their costs and states
  python -m trainers.reproduce quick                             one row, into runs/reproduce/quick
  python -m trainers.reproduce li-figure-5 theorem-3-2 --data-dir DATA
  python -m trainers.reproduce --all --budget 10m --data-dir DATA     cheapest rows first
  python -m trainers.reproduce quick --check runs/quick          compare an existing run

To resume a row that was stopped, run the same command again. Costs refer to the machine that the row names.

exit codes: 0 all numbers within their tolerances; 1 numbers outside, or a command failed; 2 bad input; 130, 143 stopped
by Ctrl-C, SIGTERM
"""

_UNITS = {"s": 1 / 60, "m": 1.0, "h": 60.0}
WITHIN, DIFFERS = "within", "differs"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Rows to reproduce and folders."""

    rows: tuple[str, ...] = setting(
        (), help="names of the rows, see --list", metavar="ROW", positional=True, may_be_empty=True
    )
    list: bool = setting(False, help="list the rows with their states and costs")
    all: bool = setting(False, help="run all rows within --budget, cheapest first")
    budget: str | None = setting(None, help="total cost for --all, such as 90s, 10m or 2h", metavar="TIME")
    check: str | None = setting(None, help="compare this run with the row without running anything", metavar="RUN")
    data_dir: str | None = setting(
        None, help="folder of the data sets (default: the folder of TensorFlow Datasets)", metavar="DIR"
    )
    out: str = setting("runs/reproduce", help="folder of the runs, one for each row", metavar="DIR")
    debug: bool = setting(False, help="show tracebacks")

    def __post_init__(self) -> None:
        if sum([self.list, self.all, bool(self.rows)]) != 1:
            raise UsageError("Specify names of rows, --list or --all.")
        if self.check is not None and len(self.rows) != 1:
            raise UsageError("--check requires the name of one row.")
        if self.all != (self.budget is not None):
            raise UsageError("--all and --budget must be used together, for example --all --budget 10m.")
        if self.budget is not None:
            minutes(self.budget)


def parser() -> Parser:
    """Return the argument parser of this program."""
    parser = Parser(prog="python -m trainers.reproduce", description=__doc__, epilog=EXAMPLES)
    add_options(parser, Settings)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    settings = with_defaults(Settings, parse(parser(), argv))
    rows, out = load(), pathlib.Path(settings.out)
    if settings.list:
        print(table(("row", "item", "recorded", "cost", "here"), [_format_row(row, out) for row in rows.values()]))
        return 0
    if settings.check is not None:
        row, folder = chosen(rows, settings.rows)[0], pathlib.Path(settings.check)
        if not folder.is_dir():
            raise UsageError(f"--check {folder} is not a folder. Use the --out of a run.")
        return _report(row, folder)
    try:
        if settings.budget is not None:
            return _within_budget(rows, minutes(settings.budget), out, settings.data_dir)
        codes = [_attempt(row, rows, out, settings.data_dir) for row in chosen(rows, settings.rows)]
    except Stopped as stopped:
        print("stopped. To resume, run the same command again")
        return stopped.code
    return max(codes)


def minutes(budget: str) -> float:
    """Convert a text such as 90s, 10m or 1.5h to minutes. Raises UsageError if it has another form."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", budget)
    if match is None:
        raise UsageError(f"argument --budget: expected a time such as 90s, 10m or 2h, received {budget!r}")
    return float(match[1]) * _UNITS[match[2]]


def chosen(rows: Mapping[str, Row], names: Sequence[str]) -> list[Row]:
    """Return the rows with the given names. Raises UsageError for unknown names."""
    for name in names:
        if name not in rows:
            raise UsageError(f"unknown row {name!r}.{suggest(name, rows)} See --list.")
    return [rows[name] for name in dict.fromkeys(names)]


def reproduce(row: Row, rows: Mapping[str, Row], out: pathlib.Path, data_dir: str | None) -> int:
    """Run a row, or the rows on which it depends, and compare its numbers. Returns the exit code.

    Args:
        row: row to reproduce.
        rows: all rows by name.
        out: folder of the runs.
        data_dir: folder of the data sets, or None.
    """
    if not row.commands and not row.tests:
        if not row.rests_on:
            raise UsageError(f"{row.name} has no commands or tests: {row.verdict or 'no command is recorded'}.")
        code = max([reproduce(rows[name], rows, out, data_dir) for name in row.rests_on])
        return max(code, _report(row, out / row.rests_on[0], out)) if row.numbers else code
    print(f"== {row.name}: {row.item}; {row.cost_in_words()}", flush=True)
    if row.data is not None and data_dir is not None:
        print_lines(*other_files(data_sets()[row.data], pathlib.Path(data_dir)))
    run_again(row, out / row.name, data_dir)
    return _report(row, out / row.name, out)


def _within_budget(rows: Mapping[str, Row], budget: float, out: pathlib.Path, data_dir: str | None) -> int:
    """Reproduce the rows with a command and a known cost within a budget, cheapest first."""
    began, codes = time.monotonic(), [0]
    known = [row for row in rows.values() if row.cost_in_minutes is not None and (row.commands or row.tests)]
    for row in sorted(known, key=lambda row: row.cost_in_minutes or 0):
        spent = (time.monotonic() - began) / 60
        if spent + (row.cost_in_minutes or 0) > budget:
            print(f"skipped {row.name} and more expensive rows: {spent:.1f} of {budget:g} minutes are spent")
            break
        codes.append(_attempt(row, rows, out, data_dir))
    return max(codes)


def _attempt(row: Row, rows: Mapping[str, Row], out: pathlib.Path, data_dir: str | None) -> int:
    """Reproduce a row and report errors, so that the other rows still run. Returns the exit code."""
    try:
        return reproduce(row, rows, out, data_dir)
    except (RunError, UsageError) as error:
        sentence, code = explain_error(error)
        print_message(f"error: {sentence}")
        return code


def _report(row: Row, folder: pathlib.Path, out: pathlib.Path | None = None) -> int:
    """Print the comparison of a run with a row, and store the outcome in `out`. Returns the exit code."""
    comparisons = compare(row, folder, get_log_path(folder))
    read = [each for each in comparisons if each.value is not None]
    if comparisons and not read:
        raise UsageError(f"{folder} contains none of the numbers of {row.name}. Use a run of its command.")
    print_lines(*_circumstances(row, folder))
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
        return "ran with the recorded exit code" if not comparisons else "no recorded numbers to compare with"
    outside = [each for each in compared if not each.within]
    if outside:
        return f"{len(outside)} of {len(compared)} numbers differ by more than their tolerance"
    return f"all {len(compared)} numbers are within their tolerances"


def _circumstances(row: Row, folder: pathlib.Path) -> list[str]:
    """Describe the differences of a run from the recorded one: versions, data, weights."""
    run, lines = Run(folder), []
    config = run.config() if run.exists() else {}
    now = config.get("versions") or _environment.collect_versions()
    now.setdefault("tensorflow", now.get("tensorflow-cpu", "missing"))
    for package, version in row.versions.items():
        if not f"{now.get(package, 'missing')}.".startswith(f"{version}."):
            lines.append(f"{package} was {version}, now {now.get(package, 'missing')}: numbers may differ by rounding")
    known = data_sets()[row.data].digest if row.data is not None else None
    found = (config.get("data") or {}).get("digest")
    if config.get("program") == "trainers.cifar" and known is not None and found != known:
        lines.append(f"the checksum of the data is {found}, not {known}: the images differ")
    if row.weights is not None:
        from trainers.reproduce.weights import weights_digest

        digest = weights_digest(folder) or "missing"
        same = digest.startswith(row.weights.sha256)
        lines.append(
            f"weights: {'bitwise identical to the recorded ones' if same else 'not bitwise identical'} (SHA-256 "
            f"{digest[:16]}"
            f"{'' if same else f', recorded {row.weights.sha256[:16]}: different threads, instructions or versions'})"
        )
    return lines


def _format_row(row: Row, out: pathlib.Path) -> tuple[str, ...]:
    if not row.commands and not row.tests:
        state = "see other rows" if row.rests_on else "no commands"
    else:
        state = "yes" if row.date else "not run"
    here = ""
    if (out / f"{row.name}.json").is_file():
        here = _outcome(out / f"{row.name}.json")
    elif get_log_path(out / row.name).is_file():
        here = "started"
    cost = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", row.cost_in_words())
    return row.name, f"{row.paper}: {row.item}" if row.paper else row.item, state, cost, here


def _outcome(path: pathlib.Path) -> str:
    """Return the outcome of a row: `WITHIN` or `DIFFERS`, or "damaged" for a file with neither."""
    try:
        outcome = json.loads(path.read_bytes())
    except ValueError:
        outcome = None
    state = outcome.get("state") if isinstance(outcome, dict) else None
    return state if state in (WITHIN, DIFFERS) else "damaged"


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format an aligned table of text."""
    widths = [max(len(line[column]) for line in (header, *lines)) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (header, *lines)
    )


if __name__ == "__main__":
    run_program(main)
