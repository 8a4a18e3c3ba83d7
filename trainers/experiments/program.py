"""Frame of the programs of experiments: command line, folder of the run, cases, tables, figures and verdicts."""

import dataclasses
import hashlib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar

from idmatters_tf._imports import require
from idmatters_tf._presentation.progress import Progress
from trainers.cli.arguments import UsageError
from trainers.cli.settings import Parser, as_dict, make_parser, setting, with_defaults
from trainers.cli.startup import print_lines, print_message
from trainers.datasets import OfficialFiles
from trainers.run.figures import save_figure
from trainers.run.folder import JsonObject, Run, hold_lock, write_csv

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

    from idmatters_tf.data.images import ImageData

Row = TypeVar("Row")
# Numbers by name, or groups of them.
Numbers: TypeAlias = Mapping[str, "float | Numbers"]

EXIT_CODES = "exit codes: 0 success; 1 failure while running; 2 bad input; 130 stopped by Ctrl-C"
# Options that do not change the results.
_NOT_SAVED = ("out", "format")
_VERDICTS = {True: "SEEN", False: "NOT SEEN", None: "OPEN"}


@dataclasses.dataclass(frozen=True)
class _Named:
    dataset: str = setting(help="data set")


@dataclasses.dataclass(frozen=True)
class DataSettings(OfficialFiles, _Named):
    """Data set. Subclasses list their data sets."""

    def load(self, train: int = 10_000, test: int = 2_000) -> "ImageData":
        """Load the images. `train` and `test` are numbers of generated images.

        Raises:
            idmatters_tf.data.images.DataError: the data set is missing.
        """
        from idmatters_tf.data import shapes

        return shapes.load(train, test) if self.dataset == "shapes" else self.load_official(self.dataset)


@dataclasses.dataclass(frozen=True)
class OutSettings:
    """Folder of the results."""

    out: str = setting(help="folder of the results", metavar="DIR")


@dataclasses.dataclass(frozen=True)
class RunSettings(OutSettings):
    """Folder of the results and format of the figures."""

    format: Literal["png", "svg", "pdf"] = setting("png", help="format of the figures")


def group_by(rows: Iterable[Row], *columns: str) -> dict[Any, list[Row]]:
    """Group rows by the value of a column, or the values of several columns, in order of appearance."""
    key = operator.attrgetter(*columns)
    groups = dict[Any, list[Row]]()
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Result of comparing a claim with the measurements."""

    name: str  # name of the numbers in result.json
    seen: bool | None  # True if the claim holds in the rows, None if the rows are insufficient
    claim: str  # the claim, or what is missing
    numbers: Numbers = dataclasses.field(default_factory=dict[str, "float | Numbers"])

    def __str__(self) -> str:
        numbers = f": {_as_text(self.numbers)}" if self.numbers else ""
        return f"{_VERDICTS[self.seen]}: {self.claim}{numbers}."


def _as_text(numbers: Numbers) -> str:
    return ", ".join(
        f"{name} ({_as_text(value)})" if isinstance(value, Mapping) else f"{name} {value:.4g}"
        for name, value in numbers.items()
    )


class Results:
    """Results of a program: tables and figures in the folder of a run, and the content of its result.json.

    Attributes:
        path: folder of the run.
        values: content of result.json: verdicts, numbers by name, numbers of rows of the tables, and others.
    """

    def __init__(self, run: Run, settings: Mapping[str, object], format: str):
        self.path, self._run, self._settings, self._format = run.path, run, settings, format
        self.values: JsonObject = {"verdicts": [], "tables": {}, "numbers": {}}

    def start(self, origin: str, *arrays: "np.ndarray") -> None:
        """Record the settings and the data, which are identified by a checksum, before the first result."""
        digest = hashlib.sha256()
        for array in arrays:
            digest.update(array.tobytes())
        data = {"origin": origin, "digest": digest.hexdigest()}
        if self._run.exists():
            self._run.check_data(**data)
        else:
            self._run.start(self._settings, data)

    def report(
        self,
        name: str,
        measure: Callable[..., Iterable[Row]],
        cases: Iterable[tuple[object, ...]],
        figures: "Mapping[str, Callable[[Sequence[Row]], Figure]]",
        verdicts: "Callable[[Sequence[Row]], Iterable[Verdict]] | None" = None,
        by: str | None = None,
    ) -> None:
        """Measure all cases, write the rows to NAME.csv and the figures, and add verdicts.

        Args:
            name: name of the table.
            measure: function of a case that returns rows, which are dataclasses.
            cases: arguments of the function.
            figures: functions that draw the rows, by name of the figure.
            verdicts: function that compares a claim with the rows.
            by: column of the rows; there are verdicts for each of its values.
        """
        cases = list(cases)
        rows: list[Row] = []
        with Progress(len(cases), name, unit="cases", delay=0, leave=True) as progress:
            for case in cases:
                rows += measure(*case)
                progress.advance()
        if not rows:
            print_message(f"{name}: skipped, no case applies")
            return
        import matplotlib

        paths = [self.path / f"{name}.csv", *(self.path / f"{figure}.{self._format}" for figure in figures)]
        write_csv(paths[0], list(map(vars, rows)))
        # Font sizes in points.
        with matplotlib.rc_context({"font.size": 8, "axes.titlesize": 9, "axes.labelsize": 9, "figure.labelsize": 9}):
            for path, draw in zip(paths[1:], figures.values(), strict=True):
                save_figure(draw(rows), path)
        self.values["tables"][name] = len(rows)
        print_lines(f"{name}: {', '.join(map(str, paths))}")
        groups = [rows] if by is None else group_by(rows, by).values()
        for verdict in (each for own in groups if verdicts for each in verdicts(own)):
            self.add(verdict)

    def add(self, verdict: Verdict) -> None:
        """Print a verdict and record it with its numbers."""
        self.values["verdicts"].append(str(verdict))
        print_lines(str(verdict))
        if verdict.numbers:
            self.values["numbers"][verdict.name] = verdict.numbers


class ExperimentSettings(Protocol):
    """Settings of a program, a dataclass, with those of its run in a group."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def run(self) -> OutSettings:
        """Folder of the results, and for `RunSettings` the format of the figures."""
        ...


Settings = TypeVar("Settings", bound=ExperimentSettings)


@dataclasses.dataclass(frozen=True)
class ExperimentProgram(Generic[Settings]):
    """A program of experiments."""

    name: str  # module, such as "trainers.landscape"
    description: str | None
    epilog: str  # end of the help
    settings: type[Settings]
    measure: Callable[[Settings, Results], None]  # computes the results for the settings, from `Results.start` on
    packages: tuple[str, ...] = ("matplotlib",)  # optional packages

    def parser(self) -> Parser:
        """Return the argument parser."""
        return make_parser(self.name, self.description, self.epilog, self.settings)

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the program and return its exit code."""
        settings = with_defaults(self.settings, self.parser().parse(argv))
        require(*self.packages)
        saved = {name: value for name, value in as_dict(settings).items() if name not in _NOT_SAVED}
        run = Run(settings.run.out)
        run.check_usable()
        with hold_lock(run.path):
            if not is_finished(run, saved):
                figures = settings.run.format if isinstance(settings.run, RunSettings) else ""
                results = Results(run, saved, figures)
                self.measure(settings, results)
                run.finish(results.values)
        return 0


def is_finished(run: Run, settings: Mapping[str, object]) -> bool:
    """Return True, after a message, if a run is finished, and False if it is to be started or resumed.

    Raises:
        UsageError: the folder has a run with other settings, or of a training program.
    """
    if not run.exists():
        return False
    program = run.config().get("program")
    if program is not None:
        raise UsageError(f"{run.path} is a run of {program}. Use another --out.")
    run.check_same(settings)
    result = run.result({"verdicts": list})
    if result is not None:
        print_lines(" ".join([f"{run.path} is finished.", *map(str, result["verdicts"]), "Use another --out."]))
    return result is not None
