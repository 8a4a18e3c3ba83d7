"""Execution of experiments, and their results: tables, figures, verdicts and TensorBoard scalars."""

import dataclasses
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib

from idmatters_tf.checkpointing import check_held
from trainers.experiments.experiment import AnyExperiment, Scalars
from trainers.experiments.progress import stage_bars
from trainers.run.figures import save_figure
from trainers.run.tables import write_csv

# Font sizes of all figures, in points.
_STYLE: dict[Any, Any] = {"axes.titlesize": 9, "axes.labelsize": 9, "figure.labelsize": 9, "figure.titlesize": 10}
_STYLE |= {"xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8}


@dataclasses.dataclass(frozen=True)
class Results:
    """Results of one experiment.

    Attributes:
        rows: rows of the table, empty if the experiment has no cases.
        paths: the table, then the figures.
        verdicts: one line each.
    """

    rows: Sequence[Any]
    paths: Sequence[pathlib.Path]
    verdicts: Sequence[str]


def output_names(experiments: Iterable[AnyExperiment], format: str) -> list[str]:
    """Return the names of the files that `run_experiment` writes for experiments."""
    return [
        name
        for experiment in experiments
        for name in (f"{experiment.name}.csv", *(f"{figure}.{format}" for figure in experiment.figures))
    ]


def run_experiment(
    experiment: AnyExperiment, problem: Any, settings: Any, folder: pathlib.Path, unit: str = "networks"
) -> Results:
    """Run an experiment with a progress bar and write its table and figures.

    Args:
        experiment: description of the experiment.
        problem: data of the experiment.
        settings: settings of the program; `settings.run.format` is the format of the figures.
        folder: folder of the results.
        unit: name of the units of work in the progress bar.
    """
    with stage_bars(unit=unit) as progress:
        rows = experiment.run(problem, settings, progress)
    if not rows:
        return Results([], [], [])
    paths = [folder / f"{experiment.name}.csv"]
    write_csv(paths[0], [dataclasses.asdict(row) for row in rows])
    for name, draw in experiment.figures.items():
        with matplotlib.rc_context(_STYLE):
            figure = draw(rows)
            if experiment.title:
                figure.suptitle(experiment.title(rows, settings))
            paths.append(save_figure(figure, folder / f"{name}.{settings.run.format}"))
    return Results(rows, paths, list(map(str, experiment.verdicts(rows))))


def write_scalars(scalars: Iterable[Scalars], folder: pathlib.Path) -> None:
    """Write scalars for TensorBoard, with one folder for each run.

    Args:
        scalars: scalars in any order.
        folder: parent of the folders of the runs.
    """
    import tensorflow as tf

    from idmatters_tf.callbacks._monitor import write_summary

    check_held(folder)
    runs: dict[str, list[Scalars]] = {}
    for each in scalars:
        runs.setdefault(each.run, []).append(each)
    for run, points in runs.items():
        writer = tf.summary.create_file_writer(str(folder / re.sub(r"[^A-Za-z0-9.]+", "-", run)))
        for point in points:
            write_summary(writer, point.step, point.values)
        writer.close()
