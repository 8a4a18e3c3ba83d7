"""What an experiment is: how it is run, what a row of its table holds, its figures and its verdict."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from matplotlib.figure import Figure

Problem = TypeVar("Problem")
Settings = TypeVar("Settings")
Row = TypeVar("Row")

# (stage, done, total): so many of so many pieces of a stage of the work are done.
ProgressCallback = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """The progress callback that shows nothing."""


class Counter:
    """Counts the pieces of one stage of the work and reports each to a progress callback."""

    def __init__(self, progress: ProgressCallback, stage: str, total: int):
        self._progress, self._stage, self._total, self._done = progress, stage, total, 0
        progress(stage, 0, total)

    def advance(self) -> None:
        """One more piece is done."""
        self._done += 1
        self._progress(self._stage, self._done, self._total)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a claim is seen in the results.

    Attributes:
        seen: None where the results are not enough to say.
        reason: the numbers that it rests on, or what is missing.
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
        step: on the horizontal axis.
        values: by tag.
    """

    run: str
    step: int
    values: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Experiment(Generic[Problem, Settings, Row]):
    """One experiment, from its settings to its results.

    Attributes:
        name: of its table, NAME.csv.
        row: the dataclass of a row; its fields are the columns of the table.
        run: from a problem and settings to the rows; none where the problem offers nothing to measure.
        figures: by file name without suffix, what draws the rows.
        verdicts: whether the claims are seen in the rows.
        scalars: what TensorBoard shows of the rows.
    """

    name: str
    row: type[Row]
    run: Callable[[Problem, Settings, ProgressCallback], list[Row]]
    figures: Mapping[str, Callable[[Sequence[Row]], Figure]]
    verdicts: Callable[[Sequence[Row]], Sequence[Verdict]] = lambda rows: ()
    scalars: Callable[[Sequence[Row]], Iterable[Scalars]] = lambda rows: ()


AnyExperiment = Experiment[Any, Any, Any]
