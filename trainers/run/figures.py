"""Figures of runs."""

import itertools
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from idmatters_tf.checkpointing import replacing
from trainers.run.folder import JsonObject

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Records: TypeAlias = Sequence[JsonObject]

# Sufficient for the column of a page on a high-resolution screen.
DPI = 150


def convergence(records: Records, path: str | os.PathLike[str], title: str) -> None:
    """Draw the paper's Figure 1, training and test error against steps, to a .png, .svg or .pdf file."""
    figure, axes = _make_axes(title)
    axes.set_xlabel("step")
    train, test, drops = _errors(records, "train"), _errors(records, "test"), rate_drops(records)
    if train:
        axes.plot(*zip(*train, strict=True), color="tab:blue", alpha=0.25, linewidth=1)
        train = running_mean(train, drops)
        label = "training error (augmented)"
        marker = _marker(train, 1)
        axes.plot(*zip(*train, strict=True), color="tab:blue", marker=marker, linewidth=1.5, label=label)
    if test:
        steps, errors = zip(*test, strict=True)
        axes.plot(steps, errors, color="tab:red", marker=_marker(test), markersize=4, label="test error")
        best = min(test, key=lambda point: point[1])
        axes.set_xlabel(f"step    (best test error {best[1]:.2f} % at step {best[0]:,}, last {errors[-1]:.2f} %)")
    with_top5 = [(record["step"], 100 * record["top5_error"]) for record in records if "top5_error" in record]
    if with_top5:
        marker = _marker(with_top5, 1)
        label = "test error, top-5"
        axes.plot(*zip(*with_top5, strict=True), color="tab:orange", marker=marker, linewidth=1.2, label=label)
    for number, drop in enumerate(drops):
        label = None if number else "learning rate drop"
        axes.axvline(drop, color="grey", linestyle=":", linewidth=1, label=label)
    axes.set_ylabel("error, %" if with_top5 else "top-1 error, %")
    _set_logarithmic(axes, [error for _, error in [*train, *test, *with_top5]])
    axes.legend()
    save_figure(figure, path)


def comparison(runs: Mapping[str, Records], path: str | os.PathLike[str]) -> pathlib.Path:
    """Draw the test error (lines) and training error (faint) of runs to a .png, .svg or .pdf file. Returns its path.

    `runs` are records by name; those without an evaluation appear only in the legend.
    """
    figure, axes = _make_axes("Convergence")
    errors = []
    drawn = 0
    for name, records in runs.items():
        # Names of folders are not formulas, even with a dollar sign.
        name = name.replace("$", r"\$")
        diverged = [record["step"] for record in records if record["kind"] == "diverged"]
        ended = f", diverged at step {diverged[-1]:,}" if diverged else ""
        test, train = _errors(records, "test"), _errors(records, "train")
        if not test:
            axes.plot([], [], linestyle="", label=f"{name} (no test{ended})")
            continue
        color, line = f"C{drawn % 10}", ("-", "--", ":")[drawn // 10 % 3]
        drawn += 1
        if train:
            steps, means = zip(*running_mean(train, rate_drops(records)), strict=True)
            errors += means
            axes.plot(steps, means, color=color, alpha=0.3, linewidth=1, marker=_marker(train, 1))
        steps, values = zip(*test, strict=True)
        errors += values
        label = f"{name} (best {min(values):.2f} %{ended})"
        axes.plot(steps, values, color=color, linestyle=line, marker=_marker(steps), markersize=4, label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("top-1 error, %    (test: strong, training: faint)")
    _set_logarithmic(axes, errors)
    axes.legend(fontsize=8)
    return save_figure(figure, path)


def _make_axes(title):
    """Return a figure and its axes with a title that is no formula."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10, parse_math=False)
    axes.grid(alpha=0.3)
    return figure, axes


def _marker(points, up_to=40):
    """Return a marker for a small number of points, which a line alone would not show."""
    return "o" if len(points) <= up_to else None


def save_figure(figure: "Figure", path: str | os.PathLike[str]) -> pathlib.Path:
    """Write a figure atomically in the format of its suffix (.png, .svg, .pdf). Returns the path."""
    path = pathlib.Path(path)
    with replacing(path) as beside:
        figure.savefig(beside, dpi=DPI, format=path.suffix[1:])
    return path


def _set_logarithmic(axes: "Axes", values: Iterable[float]) -> None:
    """Make the vertical axis logarithmic, with labels at 1, 2 and 5 times the powers of 10 or at regular intervals.

    With zeros among the values the axis is linear.
    """
    from matplotlib.ticker import AutoLocator, LogLocator, NullFormatter

    values = list(values)
    lowest, highest = min(values, default=0.0), max(values, default=0.0)
    if lowest <= 0:
        axes.set_ylim(bottom=0)
        return
    axes.set_yscale("log")
    axes.set_ylim(lowest / 1.15, highest * 1.15)
    # A narrow range, as at the start of a run, may contain only one of these numbers.
    axes.yaxis.set_major_locator(AutoLocator() if highest < 5 * lowest else LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _errors(records, kind):
    """Return (step, top-1 error in percent) of each record of a kind."""
    return [(record["step"], 100 * record["error"]) for record in records if record["kind"] == kind]


def rate_drops(records: Records) -> list[int]:
    """Return the steps of the last records before a constant learning rate drops to half or less."""
    rates = [(record["step"], record["learning_rate"]) for record in records if "learning_rate" in record]
    # A linear schedule also halves between its last records, but is not constant before.
    return [
        step
        for (_, earlier), (step, before), (_, rate) in zip(rates, rates[1:], rates[2:], strict=False)
        if earlier == before and rate <= before / 2
    ]


def running_mean(points: Sequence[tuple[float, float]], drops: Iterable[int] = ()) -> list[tuple[float, float]]:
    """Return the centered running mean of (step, value) over a fortieth of the points.

    Curves are steep after the first point and after drops, so that means do not extend across these points. Near them,
    and near the end, the window is smaller.
    """
    steps = [step for step, _ in points]
    at_drops = set(drops)
    bounds = [0, *(index for index, step in enumerate(steps, start=1) if step in at_drops), len(points)]
    means: list[float] = []
    for start, stop in itertools.pairwise(bounds):
        for index in range(start, stop):
            reach = min(len(points) // 40 // 2, index - start)
            near = [value for _, value in points[index - reach : min(index + reach + 1, stop)]]
            means.append(sum(near) / len(near))
    return list(zip(steps, means, strict=True))
