"""The figures of `trainers.shortcuts`, each after one of Li et al.'s."""

import pathlib

import numpy as np

from trainers.run.figures import save_figure
from trainers.shortcuts.curves import interpolated

COLORS = {"xavier": "tab:green", "orthogonal": "tab:orange", "1-shortcut": "tab:red", "2-shortcut": "tab:blue"}
COLORS |= {"3-shortcut": "tab:purple"}


def draw(name, rows, folder):
    """Draws an experiment's rows into `folder`; returns the path of the PNG."""
    return save_figure(FIGURES[name](rows), pathlib.Path(folder) / f"{name}.png", dpi=90)


def _panels(count):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * count + 0.6, 4.2), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)
    for axis in axes[0]:
        axis.grid(alpha=0.3)
    return figure, axes[0]


def _legend(figure, axis):
    figure.legend(
        *axis.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3 if len(figure.axes) == 1 else 5,
        fontsize=8,
    )


def _groups(rows, column):
    groups = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups


def _depths(axis, rows):
    depths = sorted({row["depth"] for row in rows})
    axis.set_xscale("log")
    axis.set_xticks(depths, list(map(str, depths)), fontsize=8)
    axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axis.set_xlabel("depth, layers")


def _conditions(rows):
    figure, (axis,) = _panels(1)
    for kind, of_kind in _groups(rows, "kind").items():
        depth, lg, deviation = (
            np.array([row[column] for row in of_kind]) for column in ("depth", "lg_condition", "deviation")
        )
        axis.errorbar(depth, lg, deviation, color=COLORS[kind], marker="o", markersize=4, capsize=3, label=kind)
    _depths(axis, rows)
    axis.set_ylabel("lg condition number at the start")
    axis.set_title(f"Li et al., Figure 5; mean and deviation of {rows[0]['runs']} runs", fontsize=10)
    _legend(figure, axis)
    return figure


def _sweep(rows):
    activations = _groups(rows, "activation")
    figure, axes = _panels(2 * len(activations))
    for place, (activation, chosen) in enumerate(activations.items()):
        losses, rates = axes[2 * place : 2 * place + 2]
        for kind, of_kind in _groups(chosen, "kind").items():
            best = [row for row in of_kind if row["best"] and row["loss"] is not None]
            style = {"color": COLORS[kind], "marker": "o", "markersize": 4, "label": kind}
            losses.loglog([row["depth"] for row in best], [row["loss"] for row in best], **style)
            rates.loglog([row["depth"] for row in best], [row["rate"] for row in best], **style)
        losses.set_ylabel("loss - optimum at the best rate" if activation == "linear" else "loss at the best rate")
        rates.set_ylabel("best learning rate")
        for axis in (losses, rates):
            _depths(axis, chosen)
            axis.set_title(f"{activation}; Figure {9 if activation == 'linear' else 10}", fontsize=10)
    _legend(figure, axes[0])
    return figure


def _norms(rows):
    activations = _groups(rows, "activation")
    figure, axes = _panels(len(activations))
    for axis, (activation, chosen) in zip(axes, activations.items(), strict=True):
        depths = _groups(chosen, "depth")
        for number, (depth, of_depth) in enumerate(sorted(depths.items())):
            for run, of_run in _groups(of_depth, "run").items():
                points = [(row["loss"], row["mean_frobenius"]) for row in of_run if row["loss"] > 0]
                color = f"C{number}"
                axis.semilogx(*zip(*points, strict=True), color=color, label=None if run else f"depth {depth}")
        # What is below is rounding.
        axis.set_xlim(left=max(axis.get_xlim()[0], 1e-9))
        axis.set_xlabel("loss - optimum" if activation == "linear" else "loss")
        axis.set_ylabel("mean Frobenius norm")
        axis.set_title(f"2-shortcuts, {activation}; Figure 3", fontsize=10)
    _legend(figure, axes[0])
    return figure


def _trajectory(rows):
    activations = _groups(rows, "activation")
    figure, axes = _panels(2 * len(activations))
    for place, (activation, chosen) in enumerate(activations.items()):
        eigenvalues, index = axes[2 * place : 2 * place + 2]
        lg = [np.log10(row["loss"]) for row in chosen if row["loss"] > 0]
        grid = np.linspace(min(lg), max(lg), 200)
        for kind, of_kind in _groups(chosen, "kind").items():
            for axis, column, style in (
                (eigenvalues, "max_abs", "-"),
                (eigenvalues, "p10_abs", "--"),
                (index, "index", "-"),
            ):
                label = f"{kind}, {'10th percentile' if column == 'p10_abs' else 'maximum'}"
                _band(axis, grid, interpolated(of_kind, column, grid), COLORS[kind], style, label)
        unit = "lg(loss - optimum)" if activation == "linear" else "lg loss"
        figures = (6, "8 left") if activation == "linear" else (7, "8 left with ReLU")
        for axis, label, number in ((eigenvalues, "lg |eigenvalue|", figures[0]), (index, "index", figures[1])):
            axis.set_xlabel(unit)
            axis.set_ylabel(label)
            axis.set_title(f"{activation}, depth {chosen[0]['depth']}; Figure {number}", fontsize=10)
    _legend(figure, axes[0])
    return figure


def _band(axis, grid, curves, color, style, label):
    """The mean over the runs that have such losses, and one standard deviation around it."""
    there = np.isfinite(curves).any(axis=0)
    curves, grid = curves[:, there], grid[there]
    mean, deviation = np.nanmean(curves, axis=0), np.nanstd(curves, axis=0)
    axis.plot(grid, mean, style, color=color, label=label)
    axis.fill_between(grid, mean - deviation, mean + deviation, color=color, alpha=0.15)


def _single(rows):
    activations = _groups([row for row in rows if row["kind"] == "2-shortcut" and row["run"] == 0], "activation")
    figure, axes = _panels(len(activations))
    for axis, (activation, chosen) in zip(axes, activations.items(), strict=True):
        epochs = [row["epoch"] for row in chosen]
        axis.plot(epochs, [row["gradient_norm"] for row in chosen], color="tab:blue", label="gradient norm")
        axis.set_xscale("symlog", linthresh=10)
        axis.set_xlabel("epoch")
        axis.set_ylabel("gradient norm")
        other = axis.twinx()
        other.plot(epochs, [row["index"] for row in chosen], color="tab:red", label="index")
        other.set_ylabel("index", color="tab:red")
        axis.set_title(f"2-shortcut, {activation}, one run; Figure 8 right", fontsize=10)
    return figure


def training_norms(runs, path):
    """Figure 2: the mean Frobenius norm of the blocks against the loss during training, one curve for each run.

    Args:
        runs: by label, (losses, norms) in the order of training.
        path: of the PNG.
    """
    figure, (axis,) = _panels(1)
    for label, (losses, norms) in runs.items():
        axis.plot(losses, norms, marker="o", markersize=3, label=label)
    axis.set_xlabel("training loss")
    axis.set_ylabel("mean Frobenius norm of the blocks' kernels")
    axis.set_title("Li et al., Figure 2's measurement", fontsize=10)
    axis.legend(fontsize=8)
    return save_figure(figure, path, dpi=90)


FIGURES = {"conditions": _conditions, "sweep": _sweep, "norms": _norms, "trajectory": _trajectory, "single": _single}
