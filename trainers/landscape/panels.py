"""The figures of `trainers.landscape`, one for each experiment: a panel for each of the first few targets."""

import pathlib

from trainers.run.figures import save_figure


def draw(name, rows, folder):
    """Draws an experiment's rows into `folder`; returns the path of the PNG."""
    from matplotlib.figure import Figure

    panel, label, most = FIGURES[name]
    targets = list(dict.fromkeys(row["target"] for row in rows))[:most]
    figure = Figure(figsize=(4 * len(targets) + 1, 4.2), layout="constrained")
    axes = figure.subplots(1, len(targets), squeeze=False, sharey=True)
    for axis, target in zip(axes[0], targets, strict=True):
        axis.set_title(target, fontsize=9)
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
        panel(axis, [row for row in rows if row["target"] == target])
    axes[0][0].set_ylabel(label)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)

    return save_figure(figure, pathlib.Path(folder) / f"{name}.png", dpi=80)


def _line(axis, rows, x, y, **style):
    points = [(row[x], row[y]) for row in rows if row[y] is not None]
    if points:
        axis.plot(*zip(*points, strict=True), **style)


def _runs(rows, *columns):
    """The rows of each curve: a dict by the values of the columns."""
    runs = {}
    for row in rows:
        runs.setdefault(tuple(row[column] for column in columns), []).append(row)
    return runs


def _factorization(axis, rows):
    curves = {
        "theorem": {"label": "theorem, (4π + 3γ)/l", "color": "black", "linestyle": "--"},
        "paper": {"label": "the paper's construction", "color": "tab:orange", "marker": "s"},
        "log": {"label": "matrix logarithm", "color": "tab:green", "marker": "^"},
        "polar": {"label": "polar", "color": "tab:blue", "marker": "o"},
        "lower_bound": {"label": "lower bound", "color": "grey", "linestyle": ":"},
    }
    for column, style in curves.items():
        _line(axis, rows, "depth", column, markersize=4, **style)
    axis.set_xscale("log", base=2)
    axis.set_xlabel("depth l")


def _descent(axis, rows):
    styles = {"residual from zero": "-", "residual": "--", "standard": ":"}
    colors = _colors(rows)
    for (depth, network), run in _runs(rows, "depth", "network").items():
        label = f"{network}, l = {depth}"
        _line(axis, run, "step", "risk", color=colors[depth], linestyle=styles[network], label=label)
        left = next((row for row in run if not row["inside"]), None)
        if network == "residual from zero" and left is not None:
            axis.plot(left["step"], left["risk"], "x", color=colors[depth], markersize=9)
    axis.set_ylim(bottom=1e-12)
    axis.set_xlabel("step (x: leaves the ball)")


def _certificate(axis, rows):
    colors = _colors(rows)
    runs = _runs(rows, "depth", "network")
    # Three depths are enough for one panel.
    for depth in sorted(colors)[:: max(1, (len(colors) - 1) // 2)]:
        run = runs[depth, "residual from zero"]
        _line(axis, run, "step", "gradient", color=colors[depth], label=f"squared gradient, l = {depth}")
        _line(axis, run, "step", "per_layer_bound", color=colors[depth], linestyle="--", label="per-layer bound")
        _line(axis, run, "step", "bound", color=colors[depth], linestyle=":", label="bound (2.3)")
    axis.set_ylim(bottom=1e-14)
    axis.set_xlabel("step")


def _augmentation(axis, rows):
    colors = {"as it is": "tab:red", "augmented": "tab:blue"}
    for (problem, start), run in _runs(rows, "problem", "start").items():
        _line(axis, run, "step", "risk", color=colors[problem], alpha=0.7, label=None if start else problem)
    axis.axhline(rows[0]["barrier"], color="black", linestyle=":", label="distance to the singular maps, squared")
    axis.set_ylim(bottom=1e-10)
    axis.set_xlabel("step")


def _regularization(axis, rows):
    _line(axis, rows, "weight_decay", "tau", color="tab:blue", marker="o", label="|||A||| found")
    _line(axis, rows, "weight_decay", "risk", color="tab:red", marker="s", label="risk f - C")
    for column, color in (("theorem", "black"), ("polar", "tab:green"), ("lower_bound", "grey")):
        axis.axhline(rows[0][column], color=color, linestyle="--", label=column.replace("_", " "))
    smallest = min(row["weight_decay"] for row in rows if row["weight_decay"])
    axis.set_xscale("symlog", linthresh=smallest)
    axis.set_xlim(left=-smallest / 5)
    axis.set_ylim(bottom=1e-6)
    axis.set_xlabel("weight decay")


def _colors(rows):
    return {depth: f"C{number}" for number, depth in enumerate(sorted({row["depth"] for row in rows}))}


# A panel's function, the label of its vertical axis, and how many panels there are at most.
FIGURES = {
    "factorization": (_factorization, "|||A|||, the largest layer norm", 3),
    "descent": (_descent, "risk f - C", 4),
    "certificate": (_certificate, "squared gradient of f, and what is guaranteed", 3),
    "augmentation": (_augmentation, "risk f - C", 3),
    "regularization": (_regularization, "norm, risk", 3),
}
