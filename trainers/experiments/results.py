"""Execution of experiments, and their results: progress bars, tables, figures and verdicts."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib

from idmatters_tf._progress import Progress
from trainers.experiments.experiment import Experiment, ProgressCallback
from trainers.run.figures import save_figure
from trainers.run.tables import write_csv

# Font sizes of all figures, in points.
_STYLE: dict[Any, Any] = {"axes.titlesize": 9, "axes.labelsize": 9, "figure.labelsize": 9, "figure.titlesize": 10}
_STYLE |= {"xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8}


@dataclasses.dataclass(frozen=True)
class Results:
    """Results of one experiment; all empty if it has no cases."""

    rows: Sequence[Any]
    paths: Sequence[pathlib.Path]  # the table, then the figures
    verdicts: Sequence[str]  # one line each


def run_experiment(experiment: Experiment, problem: Any, settings: Any, folder: pathlib.Path) -> Results:
    """Run an experiment with a progress bar and write its table and figures to the folder.

    `settings.run.format` is the format of the figures.
    """
    with stage_bars(experiment.unit) as progress:
        rows = experiment.run(problem, settings, progress)
    if not rows:
        return Results([], [], [])
    table, *figures = (folder / name for name in experiment.output_names(settings.run.format))
    write_csv(table, [dataclasses.asdict(row) for row in rows])
    for path, draw in zip(figures, experiment.figures.values(), strict=True):
        with matplotlib.rc_context(_STYLE):
            save_figure(draw(rows), path)
    return Results(rows, [table, *figures], experiment.verdicts(rows))


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
