"""Compare finished or running runs: convergence in one plot, and tables of errors, sizes, speeds and settings."""

import dataclasses
import functools
import os
import pathlib
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

from idmatters_tf._arguments import as_utf8
from idmatters_tf._imports import require
from idmatters_tf._presentation.results import tabulate
from idmatters_tf.checkpointing import write_atomically
from trainers.cli.arguments import UsageError
from trainers.cli.settings import make_parser, setting, with_defaults
from trainers.cli.startup import print_lines, run_program
from trainers.run.folder import REPORT, Run, check_output, write_csv, write_mark
from trainers.training.settings import select_relevant

EXAMPLES = """
examples:
  python -m trainers.report runs/small runs/standard            compare two runs
  python -m trainers.report runs --out reports/all              all runs in a folder that have a test result
  python -m trainers.report runs/* --format pdf                 the same, and the plot as vector graphics

The program prints a table and writes comparison.png (or another --format), comparison.md and comparison.csv. The runs
are those of trainers.cifar and trainers.imagenet; other files and folders are left out.

exit codes: 0 done; 1 failed while running; 2 bad input; 130 stopped by Ctrl-C
"""


@dataclasses.dataclass(frozen=True)
class ReportSettings:
    """Settings of this program."""

    runs: tuple[str, ...] = setting(help="runs, or folders that contain runs", metavar="RUN", positional=True)
    out: str = setting("runs/report", help="folder for the comparison", metavar="DIR")
    format: Literal["png", "svg", "pdf"] = setting("png", help="format of the plot")


parser = functools.partial(make_parser, "trainers.report", __doc__, EXAMPLES, ReportSettings)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    settings = with_defaults(ReportSettings, parser().parse(argv))
    require("matplotlib")
    folder = pathlib.Path(settings.out)
    check_output(folder, REPORT)
    runs = _find_runs(settings.runs)
    if not any(record["kind"] == "test" for run in runs.values() for record in run.metrics()):
        raise UsageError("none of the runs has a test result yet. Wait for the first evaluation (--evaluate-every).")

    from trainers.run.figures import comparison

    rows = make_rows(runs)
    table = folder / "comparison.csv"
    write_mark(folder, REPORT, "trainers.report", runs=[str(run.path) for run in runs.values()])
    write_csv(table, rows)
    write_atomically(folder / "comparison.md", markdown(rows))
    figure = comparison({name: run.metrics() for name, run in runs.items()}, folder / f"comparison.{settings.format}")
    print_lines(
        tabulate(list(rows[0]), [list(row.values()) for row in rows]),
        "",
        f"{figure}, {folder / 'comparison.md'}, {table}",
    )
    return 0


def _find_runs(paths: Sequence[str]) -> dict[str, Run]:
    """Return the runs with results in folders by name, and print a note on the others.

    A folder that contains runs stands for them.
    """
    runs: dict[pathlib.Path, Run] = {}
    for path in map(pathlib.Path, paths):
        if not os.path.exists(path):
            raise UsageError(f"{path} does not exist. Use the --out of a run, or a folder that contains runs.")
        inner = [] if Run(path).exists() else [config.parent for config in sorted(path.glob("*/config.json"))]
        runs |= {each: Run(each) for each in inner or [path]}
    found = [path for path, run in runs.items() if {"test", "diverged"}.intersection(r["kind"] for r in run.metrics())]
    others = [str(path) for path in runs if path not in found]
    if others:
        print_lines(f"left out, without a test result of a training program: {', '.join(others)}")
    return dict(zip(_short_names(found), (runs[path] for path in found), strict=True))


def make_rows(runs: Mapping[str, Run]) -> list[dict[str, object]]:
    """Return a row for each run: errors in percent, sizes, speed, and the settings in which the runs differ."""
    settings = _settings_that_matter(runs)
    rows = []
    for name, run in runs.items():
        records = run.metrics()
        rates = [record["images_per_second"] for record in records if "images_per_second" in record]
        best, at_step, last, steps = _errors(run)
        row: dict[str, object] = {"run": name, "best error, %": _percent(best), "at step": at_step}
        row |= {"last error, %": _percent(last)}
        row |= {"steps": steps, "state": _state(run), "parameters": (run.result() or {}).get("parameters", "")}
        row |= {"images/s": round(statistics.median(rates)) if rates else ""}
        row |= {"minutes": f"{records[-1].get('seconds', 0.0) / 60:.1f}"}
        rows.append(row | {key: as_words(settings[name].get(key)) for key in _differing_settings(settings)})
    return rows


def markdown(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the rows as a Markdown table."""
    lines = [map(cell, rows[0]), ["---"] * len(rows[0]), *(map(cell, row.values()) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(value: object) -> str:
    """Return a value as a table cell, with the characters that have a meaning in Markdown escaped."""
    return re.sub(r"([\\`*\[\]<|&])", r"\\\1", str(value))


def as_words(value: object) -> str:
    """Return a setting as text: list items separated by spaces, and "-" for None."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return "-" if value is None else str(value)


def _differing_settings(settings):
    """Return the names of the settings in which runs differ."""
    keys = dict.fromkeys(key for values in settings.values() for key in values)
    return [key for key in keys if len({repr(values.get(key)) for values in settings.values()}) > 1]


def _settings_that_matter(runs):
    """Return the settings of each run that may change its result, unlike paths and logging intervals."""
    return {name: select_relevant(run.config()["settings"]) for name, run in runs.items()}


def _errors(run: Run) -> tuple[float | None, int | str, float | None, int]:
    """Return (best error, its step, last error, last step) of a run. Without tests, both errors are None."""
    records = run.metrics()
    tests = [record for record in records if record["kind"] == "test"]
    if not tests:
        return None, "-", None, records[-1]["step"]
    # The error of the initial weights is not a result of training.
    best = min([test for test in tests if test["step"]] or tests, key=lambda record: record["error"])
    return best["error"], best["step"], tests[-1]["error"], tests[-1]["step"]


def _state(run):
    if run.result():
        return "finished"
    steps = [record["step"] for record in run.metrics() if record["kind"] == "diverged"]
    return f"diverged at step {steps[-1]}" if steps else "not finished"


def _percent(error):
    return "-" if error is None else f"{100 * error:.2f}"


def _short_names(paths):
    """Return the names of the folders, or the whole paths if two names are equal."""
    names = [as_utf8(pathlib.Path(path).resolve().name) for path in paths]
    return names if len(set(names)) == len(names) else [as_utf8(str(path)) for path in paths]


# It uses neither.
BACKENDS = ("tensorflow", "jax")

if __name__ == "__main__":
    run_program(main, BACKENDS)
