"""Results: printed as they come and, with --record, kept in benchmarks/results, where the README's table comes from."""

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
from idmatters_tf._environment import version_of

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "results"
# Options that say nothing about what is measured.
_UNRECORDED = ("--record", "--peer-python", "--hardware", "--load")


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One line of a result.

    Attributes:
        name: what was measured.
        unit: such as "s" or "images/s"; empty for a plain number.
        median, low, high: over the rounds; None where only a ratio is known.
        ratio: see the benchmark's `ratio`; None for the baseline.
        expected: a ratio that theory predicts.
    """

    name: str
    unit: str = ""
    median: float | None = None
    low: float | None = None
    high: float | None = None
    ratio: float | None = None
    expected: float | None = None

    def sentence(self) -> str:
        """In words: name, median, range, ratio."""
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
        command: as typed in the project's folder.
        date: ISO 8601.
        hardware: the processor and how many of its cores.
        load: what else the machine was doing; empty where that is not known.
        versions: of the packages that were measured.
        rounds: how many measurements the medians are of; None where that is not known.
        measurements: in the order in which they are shown.
        notes: what else is to be said.
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
    """A number for people: whole from 1,000 on, else with so many significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def load(name: str) -> tuple[str, str, list[Result]]:
    """What a benchmark's file holds: the alternative that it compares with, what its ratio means, its results.

    A benchmark that has never been recorded has no file yet: two empty texts and no results.
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
    """Writes a benchmark's file; what is empty is left out."""

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
    """A command line with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=rounds, help="measurements of each kind (default: %(default)s)")
    parser.add_argument("--record", action="store_true", help="keep the result in benchmarks/results")
    parser.add_argument("--hardware", default=None, help="what to record as the hardware (default: as detected)")
    parser.add_argument("--load", default="", help="what to record about other work on the machine")
    return parser


class Report:
    """Prints measurements and records them at the end.

    Args:
        script: the benchmark's `__file__`.
        options: the parsed command line, see `parser`.
        packages: whose versions belong to the result.
    """

    def __init__(self, script: str, options: argparse.Namespace, packages: Sequence[str]):
        self.name, self.options = pathlib.Path(script).stem, options
        self.versions = {package: version for package in packages if (version := version_of(package)) is not None}
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
        """One more measurement: its values in all rounds, multiplied by `scale` to be in the unit."""
        low, middle, high = (scale * f(values) for f in (min, statistics.median, max))
        ends = {} if len(values) == 1 else {"low": low, "high": high}
        self.measurements.append(Measurement(name, unit, middle, **ends, ratio=ratio, expected=expected))
        print(self.measurements[-1].sentence(), flush=True)

    def finish(self, notes: str = "") -> None:
        """Prints the notes and, with --record, replaces the result of the same command."""
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
        print(f"recorded in {FOLDER / self.name}.json; python benchmarks/table.py updates the table")
        if not against:
            print('its first result: write into that file what it is compared with, "against", and what "ratio" means')


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
    """With six significant digits: more would only be noise in the history of the files."""
    numbers = {
        name: float(f"{value:.6g}")
        for name, value in dataclasses.asdict(measurement).items()
        if isinstance(value, float)
    }
    return dataclasses.replace(measurement, **numbers)
