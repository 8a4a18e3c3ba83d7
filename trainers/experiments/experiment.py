"""Description of an experiment: its cases, the measurement of one case, figures, verdict and scalars.

An experiment is a module with a dataclass for the rows of its table, the functions `cases`, `measure`, `verdict` and
`draw`, and a constant `EXPERIMENT` that names them. `trainers.experiments.results.run_experiment` runs it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from matplotlib.figure import Figure

Problem = TypeVar("Problem")
Settings = TypeVar("Settings")
Row = TypeVar("Row")

# The arguments of `Experiment.measure` for each case.
Cases = Iterable[tuple[Any, ...]]
# (stage, done, total): `done` of `total` units of work of a stage are done.
ProgressCallback = Callable[[str, int, int], None]


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
    """Result of comparing a claim with the measurements.

    Attributes:
        seen: True if the claim holds in the rows, None if the rows are insufficient.
        reason: the numbers behind the verdict, or the missing ones.
    """

    seen: bool | None
    reason: str

    def __str__(self) -> str:
        return f"{ {True: 'SEEN', False: 'NOT SEEN', None: 'OPEN'}[self.seen] }: {self.reason}."


@dataclasses.dataclass(frozen=True)
class Scalars:
    """One step of one TensorBoard run.

    Attributes:
        run: the run's name, unique among all experiments of a program.
        step: position on the horizontal axis.
        values: values by tag.
    """

    run: str
    step: int
    values: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Experiment(Generic[Problem, Settings, Row]):
    """One experiment, from its settings to its results.

    Attributes:
        name: name of the table, NAME.csv.
        cases: returns the arguments of `measure` for each case of a problem under the settings. An experiment without
            cases is skipped.
        measure: returns the rows of one case. A row is a dataclass; its fields are the columns of the table.
        figures: functions that draw the rows, by file name without suffix.
        verdict: compares the claim with the rows.
        verdict_by: name of a column; there is one verdict for each of its values.
        title: returns the title of all figures from the rows and the settings.
        scalars: returns the TensorBoard scalars of a row.
    """

    name: str
    cases: Callable[[Problem, Settings], Cases]
    measure: Callable[..., Iterable[Row]]
    figures: Mapping[str, Callable[[Sequence[Row]], Figure]]
    verdict: Callable[[Sequence[Row]], Verdict] | None = None
    verdict_by: str | None = None
    title: Callable[[Sequence[Row], Settings], str] | None = None
    scalars: Callable[[Row], Scalars] | None = None

    def run(self, problem: Problem, settings: Settings, progress: ProgressCallback | None = None) -> list[Row]:
        """Measure all cases.

        Args:
            problem: first argument of `cases`.
            settings: second argument of `cases`.
            progress: called before the first and after each case.
        """
        cases, rows = list(self.cases(problem, settings)), []
        for done, case in enumerate(cases):
            if progress and not done:
                progress(self.name, 0, len(cases))
            rows += self.measure(*case)
            if progress:
                progress(self.name, done + 1, len(cases))
        return rows

    def verdicts(self, rows: Sequence[Row]) -> list[Verdict]:
        """Return the verdict on the rows, or one for each value of the column `verdict_by`."""
        if self.verdict is None:
            return []
        groups = by_column(rows, self.verdict_by).values() if self.verdict_by else [rows]
        return [self.verdict(group) for group in groups]


AnyExperiment = Experiment[Any, Any, Any]
