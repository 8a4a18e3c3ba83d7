"""Figures 6 to 8: spectrum of the Hessian against the loss during training."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.panels import line, make_legend_entry, panel_for_each
from trainers.experiments.program import Results, Verdict, group_by
from trainers.shortcuts.conditions import summarize_hessians
from trainers.shortcuts.settings import Trajectory
from trainers.shortcuts.training import CLASSES, COLORS, LINEAR_NETWORKS, Regression, ShortcutTraining, trainings

Floats = NDArray[np.float64]

# Units of three layers do not divide the default depth, the paper's. Units of one layer have no position for ReLUs.
KINDS = tuple(LINEAR_NETWORKS)


@dataclasses.dataclass(frozen=True)
class TrajectoryRow:
    """One epoch of one run."""

    activation: str  # "linear" or "relu"
    kind: str
    depth: int
    run: int  # number of the start
    rate: float
    epoch: int
    loss: float  # minus the optimum for linear networks
    max_abs: float  # largest |eigenvalue| of the Hessian
    p10_abs: float  # 10th percentile of the |eigenvalues|
    index: float  # fraction of negative eigenvalues
    gradient_norm: float  # norm of the whole gradient


def run(problem: Regression, options: Trajectory, results: Results) -> None:
    """Measure networks of each kind with each activation."""
    cases = [
        (training, kind, options.depth, options.records)
        for training in trainings(problem, options)
        for kind in KINDS
        if kind in training.networks and options.depth % training.networks[kind].shortcut_depth == 0
    ]
    figures = {"trajectory": draw, "single": draw_single}
    results.report("trajectory", measure, cases, figures, verdicts, by="activation")


def measure(training: ShortcutTraining, kind: str, depth: int, records: int) -> Iterator[TrajectoryRow]:
    """Compute the spectrum along training with the rate whose mean final loss is lowest.

    `records` spectra of each run, three times as many for the first one, are evenly distributed over the logarithm of
    the loss.
    """
    rate = training.find_rate(kind, depth)
    # Keep every epoch, because the selection depends on all losses.
    history = list(training.descend(kind, depth, rate, 1))
    hessian = _hessian_function(training, kind, depth)
    for run in range(training.starts):
        loss = np.array([state.loss[run] for state in history])
        chosen = _spread_over_loss(loss, records * (3 if run == 0 else 1))
        # The rate was chosen with different rounding, so that a run may still diverge and end early.
        chosen = [epoch for epoch in chosen if np.isfinite(loss[: epoch + 1]).all()]
        spectra = summarize_hessians(hessian(history[epoch].weights[run]) for epoch in chosen)
        for epoch, spectrum in zip(chosen, spectra, strict=True):
            values = float(loss[epoch]), spectrum.max_abs, spectrum.p10_abs, spectrum.index
            norm = float(history[epoch].gradient_norm[run])
            yield TrajectoryRow(training.activation, kind, depth, run, rate, epoch, *values, norm)


def _hessian_function(training: ShortcutTraining, kind: str, depth: int) -> Callable[[Floats], Floats]:
    """Return the dense Hessian as a function of the weights, with ReLUs by automatic differentiation."""
    problem = training.problem
    network = training.networks[kind]
    if training.activation == "linear":
        sxx, syx, _ = problem.statistics
        return lambda W: linear.shortcut_hessian(W, sxx, syx, shortcut=network.shortcut)

    from idmatters_tf.curvature import HessianOperator
    from idmatters_tf.models.linear import assign_weights, shortcut_network
    from trainers.shortcuts.theorem1 import half_squares

    n = network.shortcut_depth
    model = shortcut_network(CLASSES, depth // n, n, mid="relu", shortcut=network.shortcut)
    # This chunk is faster for these small networks than the operator's default, 0.5 s against 0.8 s.
    data = problem.X.T, problem.Y.T
    operator = HessianOperator(model, half_squares, data, batch_size=len(data[0]), chunk=128, check=False)

    def hessian(W: Floats) -> Floats:
        assign_weights(model, W)
        return np.asarray(operator.to_dense(), np.float64)

    return hessian


def _spread_over_loss(loss: Floats, count: int) -> list[int]:
    """Return the first and last epoch, and those at which log10 of the loss first passes evenly spaced levels."""
    loss = np.where(np.isfinite(loss), loss, np.inf)
    log10_loss = np.minimum.accumulate(np.log10(np.maximum(loss, 1e-300)))
    levels = np.linspace(log10_loss[0], log10_loss[-1], count)
    return sorted({int(np.argmax(log10_loss <= level)) for level in levels} | {len(loss) - 1})


# Quantities of a row that are compared at equal losses.
QUANTITIES: dict[str, Callable[[TrajectoryRow], float]] = {
    "index": lambda row: row.index,
    "log10_max_abs": lambda row: float(np.log10(max(row.max_abs, 1e-300))),
    "log10_p10_abs": lambda row: float(np.log10(max(row.p10_abs, 1e-300))),
    "log10_condition": lambda row: float(np.log10(row.max_abs) - np.log10(max(row.p10_abs, row.max_abs * 1e-16))),
}


def curves(rows: Sequence[TrajectoryRow], quantity: str) -> list[Floats]:
    """Return log10 of the losses and the values of a quantity, (2, records), ordered by the loss, for each run."""
    value = QUANTITIES[quantity]
    runs = group_by((row for row in rows if row.loss > 0), "run").values()
    return [np.array(sorted((np.log10(row.loss), value(row)) for row in run)).T for run in runs]


def excess(theirs: Sequence[TrajectoryRow], ours: Sequence[TrajectoryRow], quantity: str, points: int = 40) -> Floats:
    """Return a quantity of another kind of network minus that of ours at the losses that all runs pass.

    The quantity is interpolated linearly in log10 of the loss and averaged over the runs. The losses are
    logarithmically spaced, in ascending order. The result is empty without common losses.
    """
    kinds = [curves(rows, quantity) for rows in (theirs, ours)]
    low, high = (
        nearest([x[end] for kind in kinds for x, _ in kind], default=np.nan) for nearest, end in ((max, 0), (min, -1))
    )
    if not all(kinds) or low >= high:
        return np.empty(0)
    grid = np.linspace(low, high, points)
    theirs_mean, ours_mean = (np.mean([np.interp(grid, *curve) for curve in kind], axis=0) for kind in kinds)
    return theirs_mean - ours_mean


def verdicts(rows: Sequence[TrajectoryRow]) -> Iterator[Verdict]:
    """Compare the kinds of network at the losses that two of them reach, in the rows of one activation.

    There is a verdict for each claim of the paper: the condition numbers of 2-shortcuts are always smaller (Figures 6
    and 7), their index is always smaller (Figure 8), and 1-shortcuts behave like orthogonal networks (section 5).
    """
    kinds = group_by(rows, "kind")
    activation = rows[0].activation
    ours = kinds.pop("2-shortcut")

    def excesses(quantity: str) -> dict[str, Floats]:
        found = {kind: excess(theirs, ours, quantity) for kind, theirs in kinds.items()}
        return {kind: values for kind, values in found.items() if len(values)}

    conditions, indices = excesses("log10_condition"), excesses("index")
    if not conditions:
        yield Verdict(activation, None, f"{activation}, 2-shortcuts have no losses in common with other kinds")
        return
    where = "at all losses that both reach; share of these losses in %"
    numbers = {
        kind: {
            "share": float(100 * np.mean(values > 0)),
            "upper": float(10 ** values[-len(values) // 3 :].mean()),
            "lower": float(10 ** values[: len(values) // 3].mean()),
        }
        for kind, values in conditions.items()
    }
    claim = f"{activation}, 2-shortcuts have the smaller condition number {where}, factor in the upper and lower third"
    seen = all((values > 0).all() for values in conditions.values())
    yield Verdict(f"{activation} condition", seen, claim, numbers)

    shares = {kind: float(100 * np.mean(values > 0)) for kind, values in indices.items()}
    first = [row for row in ours if row.run == 0]
    peak = max(first, key=lambda row: row.gradient_norm)
    numbers = {"start": first[0].index, "peak": peak.index, "epoch of the peak": peak.epoch, "end": first[-1].index}
    claim = f"{activation}, 2-shortcuts have the smaller index {where}, index in one run (peak: of the gradient)"
    yield Verdict(f"{activation} index", min(shares.values()) == 100, claim, shares | numbers)

    pair = kinds.get("1-shortcut", []), kinds.get("orthogonal", [])
    near, index = np.abs(excess(*pair, "log10_condition")), np.abs(excess(*pair, "index"))
    if len(near) and "1-shortcut" in conditions:
        far = np.abs(conditions["1-shortcut"])
        numbers = {"orthogonal": float(10 ** near.mean()), "2-shortcut": float(10 ** far.mean())}
        numbers |= {"largest to orthogonal": float(10 ** near.max()), "index": float(index.max())}
        claim = (
            f"{activation}, condition number of 1-shortcuts closer to that of orthogonal than to that of 2-shortcuts; "
        )
        claim += "mean factors at common losses, and largest difference of the index from orthogonal"
        yield Verdict(f"{activation} 1-shortcut", bool(near.mean() < far.mean()), claim, numbers)


def draw(rows: Sequence[TrajectoryRow]) -> Figure:
    """Draw eigenvalues and index against the loss for each activation, as means over the runs."""
    handles = [make_legend_entry(kind, color=COLORS[kind]) for kind in group_by(rows, "kind")]
    handles += [make_legend_entry("largest |eigenvalue|, index"), make_legend_entry("10th percentile", linestyle="--")]
    return panel_for_each(rows, "activation", _panels, 2, handles=handles)


def _panels(eigenvalues: Axes, index: Axes, rows: Sequence[TrajectoryRow]) -> None:
    activation = rows[0].activation
    log10_losses = [np.log10(row.loss) for row in rows if row.loss > 0]
    grid = np.linspace(min(log10_losses), max(log10_losses), 200)
    for kind, by_kind in group_by(rows, "kind").items():
        for quantity, style in (("log10_max_abs", "-"), ("log10_p10_abs", "--"), ("index", "-")):
            panel = index if quantity == "index" else eigenvalues
            panel.plot(grid, interpolate(by_kind, quantity, grid), style, color=COLORS[kind])
    loss = "log10(loss - optimum)" if activation == "linear" else "log10 loss"
    for panel, label in ((eigenvalues, "log10 |eigenvalue|"), (index, "index")):
        panel.set(title=f"{activation}, depth {rows[0].depth}; Figures 6 to 8", xlabel=loss, ylabel=label)


def interpolate(rows: Sequence[TrajectoryRow], quantity: str, grid: Floats) -> Floats:
    """Return the mean over the runs that pass each of the log10 losses of a grid, NaN where none does."""
    values = np.array([np.interp(grid, *curve, left=np.nan, right=np.nan) for curve in curves(rows, quantity)])
    return np.ma.masked_invalid(values).mean(axis=0).filled(np.nan)


def draw_single(rows: Sequence[TrajectoryRow]) -> Figure:
    """Draw gradient norm and index of one run of a 2-shortcut network against epochs (Figure 8, right)."""
    single = [row for row in rows if row.kind == "2-shortcut" and row.run == 0]
    return panel_for_each(single, "activation", _single_panel)


def _single_panel(axes: Axes, rows: Sequence[TrajectoryRow]) -> None:
    # Other colors than those of the kinds of networks.
    for side, column, color in ((axes, "gradient_norm", "black"), (axes.twinx(), "index", "tab:brown")):
        line(side, rows, "epoch", column, color=color)
        side.set_ylabel(column.replace("_", " "), color=color)
    axes.set(title=f"2-shortcut, {rows[0].activation}, one run; Figure 8 right", xlabel="epoch")
    axes.set_xscale("symlog", linthresh=10)
