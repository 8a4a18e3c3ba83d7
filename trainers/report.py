"""Compares finished or running runs: convergence in one plot, and a table of errors, sizes, speeds and settings."""

import dataclasses
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from idmatters_tf.checkpointing import write_atomically
from trainers.cifar import Cifar
from trainers.cli.arguments import Parser, UsageError
from trainers.cli.settings import add_options, parse, setting, with_defaults
from trainers.cli.startup import run_program
from trainers.imagenet import ImageNet
from trainers.run.folder import Run
from trainers.training.program import free_on_resume

EXAMPLES = """
examples:
  python -m trainers.report runs/small runs/standard            compare two runs
  python -m trainers.report runs/* --out reports/all            every run; those without tests yet are left out
  python -m trainers.report runs/a runs/b --names pad "1x1"     with names of your own

It writes comparison.png, comparison.md and comparison.csv, and prints the table. The runs are those of trainers.cifar,
trainers.imagenet and benchmarks/cifar_on_jax.py.

exit codes: 0 done; 1 failed while running; 2 bad input
"""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is compared, and where the comparison goes."""

    runs: tuple[str, ...] = setting(help="folders of runs", metavar="RUN", positional=True)
    out: str = setting("runs/report", help="folder for the comparison", metavar="DIR")
    names: tuple[str, ...] | None = setting(
        None, help="names of the runs, in their order (default: the folders' names)", metavar="NAME"
    )
    title: str = setting("Convergence", help="title of the plot", metavar="TEXT")
    debug: bool = setting(False, help="show tracebacks")

    def __post_init__(self) -> None:
        names = self.names or _short_names(self.runs)
        if len(names) != len(self.runs) or len(set(names)) != len(names):
            raise UsageError(
                f"--names must be as many as the runs, {len(self.runs)}, all different. Received: {', '.join(names)}"
            )


def parser() -> Parser:
    """The command line of this program."""
    parser = Parser(prog="python -m trainers.report", description=__doc__, epilog=EXAMPLES)
    add_options(parser, Settings)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program; returns its exit code."""
    settings = with_defaults(Settings, parse(parser(), argv))
    runs = {}
    for name, path in zip(settings.names or _short_names(settings.runs), settings.runs, strict=True):
        run = Run(path)
        run.config()
        if any(record["kind"] == "test" for record in run.metrics()):
            runs[name] = run
        else:
            print(f"{path} has no test result yet: left out")
    if not runs:
        raise UsageError("none of the runs has a test result yet. Wait for the first one (--evaluate-every).")

    from trainers.run.figures import comparison
    from trainers.run.tables import write_csv

    rows = rows_of(runs)
    folder = pathlib.Path(settings.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be written: {error.strerror}. Name another folder.") from error
    table = markdown(rows)
    write_atomically(folder / "comparison.md", table)
    write_csv(folder / "comparison.csv", rows)
    metrics = {name: run.metrics() for name, run in runs.items()}
    figure = comparison(metrics, folder / "comparison.png", settings.title)
    print(f"{table}\n{figure}, {folder / 'comparison.md'}, {folder / 'comparison.csv'}")
    return 0


def rows_of(runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """A row of the table for each run.

    Args:
        runs: by name, each with at least one test result.

    Returns:
        Dicts with the same keys: errors in percent, sizes, speed, and the settings in which the runs differ.
    """
    # Where the data lie and how often something is written say nothing of the result.
    uninteresting = free_on_resume(Cifar) | free_on_resume(ImageNet) | {"out", "steps_per_dispatch", "minutes"}
    settings = {name: run.config()["settings"] for name, run in runs.items()}
    keys = [key for key in dict.fromkeys(key for each in settings.values() for key in each) if key not in uninteresting]
    differing = [key for key in keys if len({repr(each.get(key)) for each in settings.values()}) > 1]
    rows = []
    for name, run in runs.items():
        records, result = run.metrics(), run.result() or {}
        tests = [record for record in records if record["kind"] == "test"]
        rates = [record["images_per_second"] for record in records if record["kind"] == "train"]
        best = min(tests, key=lambda record: record["error"])
        rows.append(
            {
                "run": name,
                "best error, %": round(100 * best["error"], 2),
                "at step": best["step"],
                "last error, %": round(100 * tests[-1]["error"], 2),
                "steps": tests[-1]["step"],
                "finished": "yes" if result else "no",
                "parameters": result.get("parameters", ""),
                "images/s": round(statistics.median(rates)) if rates else "",
                "minutes": round(records[-1]["seconds"] / 60, 1),
                **{key: _in_a_cell(settings[name].get(key)) for key in differing},
            }
        )
    return rows


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table in Markdown."""
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [[f"{value:,}" if type(value) is int else str(value) for value in row.values()] for row in rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _short_names(paths):
    """The folders' names; the whole paths where two are the same."""
    names = [pathlib.Path(path).resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _in_a_cell(value):
    return " ".join(map(str, value)) if isinstance(value, list) else "-" if value is None else str(value)


if __name__ == "__main__":
    run_program(main)
