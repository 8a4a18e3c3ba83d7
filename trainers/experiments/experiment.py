"""Description and execution of an experiment: its cases, the measurement of one case, table, figures and verdicts.

An experiment is a module with a dataclass for the rows of its table, the functions `cases`, `measure`, `verdict` and
`draw`, and a constant `EXPERIMENT` that names them.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import matplotlib
from matplotlib.figure import Figure

from idmatters_tf._progress import Progress
from trainers.run.figures import save_figure
from trainers.run.records import write_csv

Row = TypeVar("Row")

# The arguments of `Experiment.measure` for each case.
Cases = Iterable[tuple[Any, ...]]
# (stage, done, total): `done` of `total` units of work of a stage are done.
ProgressCallback = Callable[[str, int, int], None]

# Font sizes of all figures, in points.
_STYLE: dict[Any, Any] = {"axes.titlesize": 9, "axes.labelsize": 9, "figure.labelsize": 9, "figure.titlesize": 10}
_STYLE |= {"xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8}


def by_columns(rows: Sequence[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    """Group rows by the values of several columns, in order of appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, column) for column in columns), []).append(row)
    return groups


def by_column(rows: Sequence[Row], column: str) -> dict[Any, list[Row]]:
    """Group rows by the value of one column, in order of appearance."""
    return {value: chosen for (value,), chosen in by_columns(rows, column).items()}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Result of comparing a claim with the measurements."""

    seen: bool | None  # True if the claim holds in the rows, None if the rows are insufficient
    reason: str  # the numbers behind the verdict, or the missing ones

    def __str__(self) -> str:
        return f"{ {True: 'SEEN', False: 'NOT SEEN', None: 'OPEN'}[self.seen] }: {self.reason}."


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One experiment, from its settings to its results.

    Attributes:
        name: name of the table, NAME.csv.
        cases: returns the arguments of `measure` for each case of a problem under the settings. An experiment without
            cases is skipped.
        measure: returns the rows of one case. A row is a dataclass; its fields are the columns of the table.
        figures: functions that draw the rows, by file name without suffix.
        verdict: compares a claim, or a list of claims, with the rows, or describes them in a line.
        verdict_by: name of a column; `verdict` is called for each of its values.
    """

    name: str
    cases: Callable[[Any, Any], Cases]
    measure: Callable[..., Iterable[Any]]
    figures: Mapping[str, Callable[[Sequence[Any]], Figure]]
    verdict: Callable[[Sequence[Any]], Verdict | str | list[Verdict]] | None = None
    verdict_by: str | None = None

    def run(self, problem: Any, settings: Any) -> list[Any]:
        """Measure all cases with a progress bar and return the rows."""
        cases, rows = list(self.cases(problem, settings)), []
        with stage_bars("cases") as progress:
            for done, case in enumerate(cases):
                progress(self.name, done, len(cases))
                rows += self.measure(*case)
                progress(self.name, done + 1, len(cases))
        return rows

    def write(self, rows: Sequence[Any], folder: pathlib.Path, format: str) -> list[pathlib.Path]:
        """Write the table and the figures of the rows to a folder and return the paths."""
        table, *figures = (folder / name for name in self.output_names(format))
        write_csv(table, [dataclasses.asdict(row) for row in rows])
        for path, draw in zip(figures, self.figures.values(), strict=True):
            with matplotlib.rc_context(_STYLE):
                save_figure(draw(rows), path)
        return [table, *figures]

    def verdicts(self, rows: Sequence[Any]) -> list[str]:
        """Return the verdicts on the rows, or on those with each value of the column `verdict_by`."""
        if self.verdict is None:
            return []
        groups = by_column(rows, self.verdict_by).values() if self.verdict_by else [rows]
        found = [self.verdict(group) for group in groups]
        return [str(item) for one in found for item in (one if isinstance(one, list) else [one])]

    def output_names(self, format: str) -> list[str]:
        """Return the names of the table and the figures in this format."""
        return [f"{self.name}.csv", *(f"{figure}.{format}" for figure in self.figures)]


@contextlib.contextmanager
def stage_bars(unit: str) -> Iterator[ProgressCallback]:
    """Yield a progress callback that shows a bar for each stage of the work."""
    with contextlib.ExitStack() as bars:
        bar = None

        def show(stage: str, done: int, total: int) -> None:
            nonlocal bar
            if bar is None or bar.title != stage:
                bars.close()
                bar = bars.enter_context(Progress(total, stage, unit=unit, delay=0, leave=True))
            bar.advance(done - bar.done)

        yield show
