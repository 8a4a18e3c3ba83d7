"""Writes the results of experiments: tables, figures and TensorBoard scalars."""

import dataclasses
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from idmatters_tf._locking import check_held
from trainers.experiments.registry import AnyExperiment, Scalars
from trainers.run.figures import save_figure
from trainers.run.tables import write_csv


def output_names(experiments: Iterable[AnyExperiment], format: str) -> list[str]:
    """Return the names of the files that `write_results` writes for experiments."""
    return [
        name
        for experiment in experiments
        for name in (f"{experiment.name}.csv", *(f"{figure}.{format}" for figure in experiment.figures))
    ]


def write_results(
    experiment: AnyExperiment, rows: Sequence[Any], folder: pathlib.Path, format: str = "png"
) -> list[pathlib.Path]:
    """Writes the table and the figures of an experiment.

    Args:
        experiment: whose rows these are.
        rows: at least one.
        folder: of the results.
        format: of the figures, "png", "svg" or "pdf".

    Returns:
        The paths, that of the table first.
    """
    table = folder / f"{experiment.name}.csv"
    write_csv(table, [dataclasses.asdict(row) for row in rows])
    figures = [save_figure(draw(rows), folder / f"{figure}.{format}") for figure, draw in experiment.figures.items()]
    return [table, *figures]


def write_scalars(scalars: Iterable[Scalars], folder: pathlib.Path) -> None:
    """Writes scalars for TensorBoard, a folder for each run.

    Args:
        scalars: in any order.
        folder: of the runs' folders.
    """
    import tensorflow as tf

    check_held(folder)
    runs: dict[str, list[Scalars]] = {}
    for each in scalars:
        runs.setdefault(each.run, []).append(each)
    for run, points in runs.items():
        writer = tf.summary.create_file_writer(str(folder / re.sub(r"[^A-Za-z0-9.]+", "-", run)))
        with writer.as_default():
            for point in points:
                for tag, value in point.values.items():
                    tf.summary.scalar(tag, value, step=point.step)
        writer.close()
