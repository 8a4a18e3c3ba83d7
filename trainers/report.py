"""Compares finished or running runs: convergence on one plot, and a table of errors, sizes, speeds and settings."""

import pathlib
import statistics

from trainers.cli.arguments import Parser, UsageError
from trainers.cli.startup import run_program
from trainers.run.files import write_atomically
from trainers.run.folder import FREE_SETTINGS, Run

EXAMPLES = """
examples:
  python -m trainers.report runs/small runs/standard            compare two runs
  python -m trainers.report runs/* --out reports/all            every run; those without tests yet are left out
  python -m trainers.report runs/a runs/b --names pad "1x1"     with names of your own

It writes comparison.png, comparison.md and comparison.csv, and prints the table. The runs are those of trainers.cifar,
trainers.imagenet and benchmarks/cifar_on_jax.py.

exit codes: 0 done; 1 failed while running; 2 bad input
"""

# Where a run lies and how often it speaks: no part of what it is.
UNINTERESTING = FREE_SETTINGS | {"out", "steps_per_dispatch", "minutes"}


def parser():
    """The command line of this program."""
    parser = Parser(prog="python -m trainers.report", description=__doc__, epilog=EXAMPLES)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs")
    parser.add_argument("--out", metavar="DIR", default="runs/report", help="where the comparison is written")
    parser.add_argument(
        "--names", nargs="+", metavar="NAME", help="of the runs, in their order (default: the folders')"
    )
    parser.add_argument("--title", metavar="TEXT", help="above the plot")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def main(argv=None):
    """Runs the program; returns its exit code."""
    options = parser().parse_args(argv)
    names = options.names or _short_names(options.runs)
    if len(names) != len(options.runs) or len(set(names)) != len(names):
        raise UsageError(f"--names must be as many as the runs, {len(options.runs)}, all different. Received: {names}")
    runs = {}
    for name, path in zip(names, options.runs, strict=True):
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
    folder = pathlib.Path(options.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be written: {error.strerror}. Name another folder.") from error
    table = markdown(rows)
    write_atomically(folder / "comparison.md", table)
    write_csv(folder / "comparison.csv", rows)
    metrics = {name: run.metrics() for name, run in runs.items()}
    picture = comparison(metrics, folder / "comparison.png", options.title or "Convergence")
    print(f"{table}\n{picture}, {folder / 'comparison.md'}, {folder / 'comparison.csv'}")
    return 0


def rows_of(runs):
    """What is to be said of each run.

    Args:
        runs: `Run`s by name.

    Returns:
        A list of dicts with the same keys: the name, errors in percent, parameters, images per second (the median over
        the records), minutes, and each setting in which the runs differ.
    """
    settings = {name: run.config()["settings"] for name, run in runs.items()}
    keys = [key for key in dict.fromkeys(key for each in settings.values() for key in each) if key not in UNINTERESTING]
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
                **{key: _said(settings[name].get(key)) for key in differing},
            }
        )
    return rows


def markdown(rows):
    """A table of the rows."""
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [[f"{value:,}" if type(value) is int else str(value) for value in row.values()] for row in rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _short_names(paths):
    """The folders' names; the whole paths where two are the same."""
    names = [pathlib.Path(path).resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _said(value):
    return " ".join(map(str, value)) if isinstance(value, list) else "-" if value is None else str(value)


if __name__ == "__main__":
    run_program(main)
