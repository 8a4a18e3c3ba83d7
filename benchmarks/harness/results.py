"""Results: printed and, with --record, stored in benchmarks/results, the source of the table in README.md.

A file is the JSON of {"against": alternative, "ratio": meaning of the ratio, "results": [...]}, with one result for
each command. A result has the keys command, date, hardware, measurements, and, if known, versions, rounds, load and
notes. A measurement has a name and, if known, unit, median, low, high, ratio, and expected, the ratio predicted by
theory.
"""

import argparse
import datetime
import json
import pathlib
import platform
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from harness.timing import available_cores
from idmatters_tf._environment import get_version

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "results"


def describe(measurement: Mapping[str, Any]) -> str:
    """Return the name, median, range and ratio of a measurement as text."""
    value = f"{plain(measurement['median'])} {measurement.get('unit', '')}".strip() if "median" in measurement else ""
    if "low" in measurement:
        value += f" ({plain(measurement['low'])} to {plain(measurement['high'])})"
    ratio = f"ratio {plain(measurement['ratio'])}" if "ratio" in measurement else ""
    if "expected" in measurement:
        ratio += f" (predicted {plain(measurement['expected'], 3)})"
    return f"{measurement['name']}: {', '.join(filter(None, (value, ratio)))}"


def plain(value: float, digits: int = 4) -> str:
    """Format a number: as an integer from 1,000 on, otherwise with `digits` significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def parser(description: str, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options shared by all benchmarks."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0], allow_abbrev=False)
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="measurements of each implementation (default: %(default)s)"
    )
    parser.add_argument("--record", action="store_true", help="store the result in benchmarks/results")
    parser.add_argument("--hardware", help="description of the hardware to record (default: detected)")
    parser.add_argument("--load", help="description of other load on the machine to record")
    return parser


class Report:
    """Printer of measurements that records them at the end.

    Args:
        script: `__file__` of the benchmark.
        options: parsed command line, see `parser`.
        packages: packages whose versions are recorded.
    """

    def __init__(self, script: str, options: argparse.Namespace, packages: Sequence[str]):
        self.name, self.options = pathlib.Path(script).stem, options
        self.versions = {package: version for package in packages if (version := get_version(package)) is not None}
        self.measurements: list[dict[str, Any]] = []

    def add(
        self, name: str, values: Sequence[float], unit: str = "", scale: float = 1.0, ratio: float | None = None
    ) -> None:
        """Add a measurement: its values in all rounds, multiplied by `scale` to convert them to the unit."""
        numbers = {"median": scale * statistics.median(values)}
        if len(values) > 1:
            numbers |= {"low": scale * min(values), "high": scale * max(values)}
        if ratio is not None:
            numbers["ratio"] = ratio
        # Six significant digits, so that noise does not enter the history of the files.
        rounded = {key: float(f"{value:.6g}") for key, value in numbers.items()}
        self.measurements.append({"name": name, **({"unit": unit} if unit else {}), **rounded})
        print(describe(self.measurements[-1]), flush=True)

    def finish(self, notes: str = "") -> None:
        """Print the notes and, with --record, replace the result of the same command."""
        if notes:
            print(notes)
        if not self.options.record:
            return
        path = FOLDER / f"{self.name}.json"
        saved = json.loads(path.read_text()) if path.exists() else {"against": "", "ratio": "", "results": []}
        result = {
            "command": shlex.join(["python", f"benchmarks/{self.name}.py", *_measured_options(sys.argv[1:])]),
            "date": datetime.date.today().isoformat(),
            "hardware": self.options.hardware or f"{available_cores()} cores of {_processor()}",
            "measurements": self.measurements,
            "versions": self.versions,
            "rounds": self.options.rounds,
            "load": self.options.load,
            "notes": notes,
        }
        results = {other["command"]: other for other in saved["results"]}
        results[result["command"]] = {key: value for key, value in result.items() if value}
        FOLDER.mkdir(exist_ok=True)
        content = json.dumps({**saved, "results": list(results.values())}, indent=2, ensure_ascii=False)
        path.write_text(f"{content}\n")
        print(f"recorded in {path}; to update the table, run python benchmarks/table.py")
        if not saved["against"]:
            print('first result: add the alternative, "against", and the meaning of the ratio, "ratio", to this file')


def _measured_options(arguments: list[str]) -> list[str]:
    """Return the arguments without the options that do not affect the measurement."""
    unrecorded = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    unrecorded.add_argument("--record", action="store_true")
    for option in ("--peer-python", "--hardware", "--load", "--out"):
        unrecorded.add_argument(option)
    return unrecorded.parse_known_args(arguments)[1]


def _processor() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
