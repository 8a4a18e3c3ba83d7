"""Results: printed and, with --record, stored in benchmarks/results, the source of the tables in README.md.

A file is the JSON of {"against": alternative, "ratio": meaning of the ratio, "results": [...]}, with one result for
each command. A measurement has a name and, if known, unit, median, low, high, ratio, and expected, the ratio predicted
by theory. `load`, other work on the machine, is added by hand.
"""

import argparse
import datetime
import json
import pathlib
import platform
import re
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
    help_text = "measurements of each implementation (default: %(default)s)"
    parser.add_argument("--rounds", type=int, default=rounds, help=help_text)
    parser.add_argument("--record", action="store_true", help="store the result in benchmarks/results")
    return parser


class Report:
    """Printer of the measurements of a script, `__file__`, that records them at the end, with versions of packages."""

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
        if self.options.record:
            unrecorded = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
            unrecorded.add_argument("--record", action="store_true")
            for option in ("--peer-python", "--out"):
                unrecorded.add_argument(option)
            words = ["python", f"benchmarks/{self.name}.py", *unrecorded.parse_known_args(sys.argv[1:])[1]]
            result = {"command": shlex.join(words), "date": datetime.date.today().isoformat()}
            result |= {"hardware": f"{available_cores()} cores of {_processor()}", "measurements": self.measurements}
            result |= {"versions": self.versions, "rounds": self.options.rounds, "notes": notes}
            path = FOLDER / f"{self.name}.json"
            saved = json.loads(path.read_text()) if path.exists() else {"against": "", "ratio": "", "results": []}
            results = {each["command"]: each for each in (*saved["results"], result)}
            content = json.dumps({**saved, "results": list(results.values())}, indent=2, ensure_ascii=False)
            path.write_text(f"{content}\n")


def _processor() -> str:
    found = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()
