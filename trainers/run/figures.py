"""Figures of runs."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from idmatters_tf.checkpointing import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Records = Sequence[Mapping[str, Any]]


def convergence(records: Records, path: str | os.PathLike, title: str, drop_steps: Sequence[int] = ()) -> None:
    """The paper's Figure 1: training and test error against steps, saved as PNG.

    Args:
        records: the records of metrics.jsonl.
        path: the file to write.
        title: above the plot.
        drop_steps: the steps at which the learning rate drops, marked by dotted lines.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    train = _errors(records, "train")
    test = _errors(records, "test")
    if train:
        steps, errors = zip(*train, strict=True)
        axes.plot(steps, errors, color="tab:blue", alpha=0.25, linewidth=1)
        axes.plot(steps, _smoothed(errors), color="tab:blue", linewidth=1.5, label="training error (augmented)")
    if test:
        steps, errors = zip(*test, strict=True)
        marker = "o" if len(test) < 40 else None
        axes.plot(steps, errors, color="tab:red", marker=marker, markersize=4, label="test error")
        best = min(test, key=lambda point: point[1])
        axes.set_xlabel(f"step    (best test error {best[1]:.2f} % at step {best[0]:,}, last {errors[-1]:.2f} %)")
    with_top5 = [(record["step"], 100 * record["top5_error"]) for record in records if "top5_error" in record]
    if with_top5:
        axes.plot(*zip(*with_top5, strict=True), color="tab:orange", linewidth=1.2, label="test error, top-5")
    last = max((step for step, _ in train + test), default=1)
    drops = [drop for drop in drop_steps if drop <= last]
    # Lines for a rate that decays all the time would hide the curves.
    for drop in drops if len(drops) <= 10 else ():
        axes.axvline(drop, color="grey", linestyle=":", linewidth=1)
    axes.set_ylabel("error, %" if with_top5 else "top-1 error, %")
    axes.set_title(title, fontsize=10, parse_math=False)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, path)


def comparison(runs: Mapping[str, Records], path: str | os.PathLike, title: str) -> pathlib.Path:
    """Test error (lines) and training error (faint) against steps for several runs, saved as PNG.

    Args:
        runs: by name, the records of metrics.jsonl.
        path: the file to write.
        title: above the plot.

    Returns:
        The path.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    for number, (name, records) in enumerate(runs.items()):
        color = f"C{number % 10}"
        train = _errors(records, "train")
        test = _errors(records, "test")
        if train:
            steps, errors = zip(*train, strict=True)
            axes.plot(steps, _smoothed(errors), color=color, alpha=0.3, linewidth=1)
        steps, errors = zip(*test, strict=True)
        style = ("-", "--", ":")[number // 10 % 3]
        # The name of a folder is not a formula, whatever is in it.
        best = f"{name} (best {min(errors):.2f} %)".replace("$", r"\$")
        marker = "o" if len(test) < 40 else None
        axes.plot(steps, errors, color=color, linestyle=style, marker=marker, markersize=4, label=best)
    axes.set_xlabel("step")
    axes.set_ylabel("top-1 error, %    (test: strong, training: faint)")
    axes.set_title(title, fontsize=10, parse_math=False)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return save_figure(figure, path)


def save_figure(figure: "Figure", path: str | os.PathLike, dpi: int = 120) -> pathlib.Path:
    """Writes a figure in the format of its suffix (.png, .svg, .pdf), entirely or not at all. Returns the path."""
    path = pathlib.Path(path)
    with replacing(path) as beside:
        figure.savefig(beside, dpi=dpi, format=path.suffix[1:])
    return path


def _errors(records, kind):
    """(step, top-1 error in percent) of each record of a kind."""
    return [(record["step"], 100 * record["error"]) for record in records if record["kind"] == kind]


def _smoothed(values, share=40):
    """A running mean over a fortieth of the values."""
    width = max(1, len(values) // share)
    return [sum(values[max(0, i - width + 1) : i + 1]) / min(width, i + 1) for i in range(len(values))]
