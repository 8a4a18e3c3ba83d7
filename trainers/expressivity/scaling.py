"""How parameters, margin, time and memory of a memoriser grow with n, k and d: measured, as a table and a figure."""

import csv
import io
import time
import tracemalloc

import numpy as np

from idmatters_tf.expressivity import construct
from idmatters_tf.expressivity.samples import distinct_rows
from trainers.run.figures import save_figure
from trainers.run.files import write_atomically

WIDTHS = (4, 8, 16, 32, 64)
DIMS = (16, 64, 256, 1024)
# For the widths and dimensions: enough for the trend, and seconds in all.
ROWS = 10_000
FRACTIONS = (32, 16, 8, 4, 2, 1)


def plans(x, settings):
    """The networks to build: (what is varied, rows, width, points) for each.

    Args:
        x: the sample; its first rows are used.
        settings: with `width`, `order`, `seed`, `dataset`.
    """
    sizes = sorted({max(2, len(x) // fraction) for fraction in FRACTIONS})
    few = min(len(x), ROWS)
    chosen = [("n", size, settings["width"], x) for size in sizes] + [("k", few, width, x) for width in WIDTHS]
    if settings["dataset"] == "random":
        rng = np.random.default_rng(settings["seed"])
        chosen += [("d", few, settings["width"], rng.standard_normal((few, dim), np.float32)) for dim in DIMS]
    return chosen


def measure(plan, labels, classes, settings):
    """Builds the network of one of the `plans` without checking it. Returns a row of the table."""
    varied, rows, width, points = plan
    kept = distinct_rows(points[:rows], labels[:rows])
    row = {"varied": varied, "n": len(kept), "k": width, "d": points.shape[1]}
    try:
        return row | _one(points[kept], labels[kept], classes, width, settings)
    except ValueError:
        # The paper's order is impossible at this size, or two rows are too close: an empty place in the figure.
        return row


def _one(x, labels, classes, width, settings):
    start = time.perf_counter()
    weights = construct(x, labels, classes, width, settings["order"], settings["seed"])
    seconds = time.perf_counter() - start
    tracemalloc.start()
    try:
        construct(x, labels, classes, width, settings["order"], settings["seed"])
        memory = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    arrays = (weights.projection, weights.bias, weights.U, weights.s, weights.V)
    arrays += (weights.last_U, weights.last_s, weights.last_V)
    return {
        "parameters": sum(array.size for array in arrays if array is not None),
        "smallest_margin": float(weights.margins.min()),
        "median_margin": float(np.median(weights.margins)),
        "seconds": seconds,
        "megabytes": memory / 1e6,
    }


COLUMNS = ("varied", "n", "k", "d", "parameters", "smallest_margin", "median_margin", "seconds", "megabytes")


def write(rows, path):
    """The table as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def draw(rows, path, settings):
    """The table as a figure: a column for each of n, k and d that was varied."""
    from matplotlib.figure import Figure

    names = {"n": "rows n", "k": "width k", "d": "dimension d"}
    varied = [name for name in names if any(row["varied"] == name and "seconds" in row for row in rows)]
    if not varied:
        return
    figure = Figure(figsize=(3.6 * len(varied) + 1, 8), layout="constrained")
    axes = figure.subplots(3, len(varied), squeeze=False, sharey="row")
    for column, name in enumerate(varied):
        chosen = [row for row in rows if row["varied"] == name and "seconds" in row]
        sizes = np.array([row[name] for row in chosen], float)
        fixed = ", ".join(f"{other} = {chosen[-1][other]:,}" for other in names if other != name)
        axes[0][column].set_title(fixed, fontsize=9)
        _panels(axes[:, column], name, sizes, chosen)
        axes[2][column].set_xlabel(names[name])
        for axis in axes[:, column]:
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xticks(sizes, [f"{size:,.0f}" for size in sizes], rotation=30, fontsize=7)
            axis.minorticks_off()
            axis.grid(alpha=0.3)
            axis.legend(fontsize=7)
    for axis, label in zip(axes[:, 0], ("parameters", "relative margin", "seconds to build, megabytes"), strict=True):
        axis.set_ylabel(label)
    figure.suptitle(f"memorisers of {settings['dataset']}, {settings['labels']} labels, order {settings['order']}")
    save_figure(figure, path, dpi=80)


def _panels(axes, name, sizes, rows):
    def column(key):
        return np.array([row[key] for row in rows])

    axes[0].plot(sizes, column("parameters"), "o-", label="parameters")
    if name == "n":
        axes[0].plot(sizes, sizes * np.log(sizes), "k:", label="n ln n")
    axes[1].plot(sizes, column("median_margin"), "o-", label="median margin")
    axes[1].plot(sizes, column("smallest_margin"), "s-", label="smallest margin")
    axes[2].plot(sizes, column("seconds"), "o-", label="seconds")
    axes[2].plot(sizes, column("megabytes"), "s-", label="megabytes at most")
    if name == "n":
        axes[2].plot(sizes, column("seconds")[-1] * (sizes / sizes[-1]) ** 2, "k:", label="slope 2")
