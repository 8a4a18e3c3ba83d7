"""Results: printed and, with --record, stored in benchmarks/results, the source of the table in README.md."""

import argparse
import dataclasses
import datetime
import json
import pathlib
import platform
import shlex
import statistics
import sys
from collections.abc import Sequence

from harness.timing import available_cores
from idmatters_tf._environment import get_version

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "results"
# Options that do not affect the measurement.
_UNRECORDED = ("--record", "--peer-python", "--hardware", "--load", "--out")


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One line of a result.

    Attributes:
        name: the measured quantity.
        unit: such as "s" or "images/s"; empty for a plain number.
        median, low, high: statistics over the rounds; None if only a ratio is known.
        ratio: ratio to the baseline as defined by the benchmark's `ratio`; None for the baseline.
        expected: ratio predicted by theory.
    """

    name: str
    unit: str = ""
    median: float | None = None
    low: float | None = None
    high: float | None = None
    ratio: float | None = None
    expected: float | None = None

    def sentence(self) -> str:
        """Return the name, median, range and ratio as text."""
        value, ratio = "", ""
        if self.median is not None:
            value = f"{plain(self.median)} {self.unit}".strip()
        if self.low is not None and self.high is not None:
            value += f" ({plain(self.low)} to {plain(self.high)})"
        if self.ratio is not None:
            ratio = f"ratio {plain(self.ratio)}"
        if self.expected is not None:
            ratio += f" (predicted {plain(self.expected, 3)})"
        return f"{self.name}: {', '.join(filter(None, (value, ratio)))}"


@dataclasses.dataclass(frozen=True)
class Result:
    """One execution of a benchmark.

    Attributes:
        command: command line, for the project's folder.
        date: ISO 8601 date.
        hardware: the processor and the number of cores used.
        load: other load on the machine; empty if unknown.
        versions: versions of the measured packages.
        rounds: number of measurements behind each median; None if unknown.
        measurements: in the order of the table.
        notes: further remarks.
    """

    command: str
    date: str
    hardware: str
    measurements: tuple[Measurement, ...]
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    rounds: int | None = None
    load: str = ""
    notes: str = ""


def plain(value: float, digits: int = 4) -> str:
    """Format a number: as an integer from 1,000 on, otherwise with `digits` significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def load(name: str) -> tuple[str, str, list[Result]]:
    """Return the contents of a benchmark's file: the alternative, the meaning of the ratio, and the results.

    For a benchmark without recorded results, return two empty strings and an empty list.
    """
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return "", "", []
    saved = json.loads(path.read_text())
    results = [
        Result(**{**result, "measurements": tuple(Measurement(**line) for line in result["measurements"])})
        for result in saved["results"]
    ]
    return saved["against"], saved["ratio"], results


def save(name: str, against: str, ratio: str, results: Sequence[Result]) -> None:
    """Write a benchmark's file, without empty fields."""

    def brief(fields):
        return {key: value for key, value in fields.items() if value not in (None, "", {})}

    described = [
        {
            **brief(dataclasses.asdict(result)),
            "measurements": [brief(dataclasses.asdict(m)) for m in result.measurements],
        }
        for result in results
    ]
    content = {"against": against, "ratio": ratio, "results": described}
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def parser(description: str, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options shared by all benchmarks."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0], allow_abbrev=False)
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="measurements of each implementation (default: %(default)s)"
    )
    parser.add_argument("--record", action="store_true", help="store the result in benchmarks/results")
    parser.add_argument("--hardware", default=None, help="description of the hardware to record (default: detected)")
    parser.add_argument("--load", default="", help="description of other load on the machine to record")
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
        self.measurements: list[Measurement] = []

    def add(
        self,
        name: str,
        values: Sequence[float],
        unit: str = "",
        scale: float = 1.0,
        ratio: float | None = None,
        expected: float | None = None,
    ) -> None:
        """Add a measurement: its values in all rounds, multiplied by `scale` to convert them to the unit."""
        low, middle, high = (scale * f(values) for f in (min, statistics.median, max))
        ends = {} if len(values) == 1 else {"low": low, "high": high}
        self.measurements.append(Measurement(name, unit, middle, **ends, ratio=ratio, expected=expected))
        print(self.measurements[-1].sentence(), flush=True)

    def finish(self, notes: str = "") -> None:
        """Print the notes and, with --record, replace the result of the same command."""
        if notes:
            print(notes)
        if not self.options.record:
            return
        against, ratio, results = load(self.name)
        command = shlex.join(["python", f"benchmarks/{self.name}.py", *_measured_options(sys.argv[1:])])
        hardware = self.options.hardware or f"{available_cores()} cores of {_processor()}"
        result = Result(
            command=command,
            date=datetime.date.today().isoformat(),
            hardware=hardware,
            measurements=tuple(_rounded(line) for line in self.measurements),
            versions=self.versions,
            rounds=self.options.rounds,
            load=self.options.load,
            notes=notes,
        )
        commands = [other.command for other in results]
        if command in commands:
            results[commands.index(command)] = result
        else:
            results.append(result)
        save(self.name, against, ratio, results)
        print(f"recorded in {FOLDER / self.name}.json; to update the table, run python benchmarks/table.py")
        if not against:
            print('first result: add the alternative, "against", and the meaning of the ratio, "ratio", to this file')


def _measured_options(arguments: list[str]) -> list[str]:
    kept, skip = [], False
    for argument in arguments:
        name, _, value = argument.partition("=")
        if skip:
            skip = False
        elif name in _UNRECORDED:
            skip = name != "--record" and not value
        else:
            kept.append(argument)
    return kept


def _processor() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _rounded(measurement: Measurement) -> Measurement:
    """Round to six significant digits, so that noise does not enter the history of the files."""
    numbers = {
        name: float(f"{value:.6g}")
        for name, value in dataclasses.asdict(measurement).items()
        if isinstance(value, float)
    }
    return dataclasses.replace(measurement, **numbers)
