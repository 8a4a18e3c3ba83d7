"""Figures 6 to 8: spectrum of the Hessian against the loss during training."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.experiment import Cases, Experiment, Verdict, by_column
from trainers.experiments.panels import add_legend, line, make_legend_entry, panels
from trainers.shortcuts.conditions import summarize_hessians
from trainers.shortcuts.settings import TrajectorySettings
from trainers.shortcuts.training import COLORS, Problem, Training, best_rate, trainings

# 1-shortcut networks are linear only. The default depth, the paper's, has no units of three layers.
KINDS = ("xavier", "orthogonal", "1-shortcut", "2-shortcut")


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


def cases(problem: Problem, settings: TrajectorySettings) -> Cases:
    """Yield the arguments of `measure` for each activation and kind of network."""
    for training in trainings(problem, settings):
        for kind in filter(training.networks.__contains__, KINDS):
            yield training, kind, settings.networks.depth, settings.networks.records


def measure(training: Training, kind: str, depth: int, records: int) -> Iterator[TrajectoryRow]:
    """Compute the spectrum along training with the rate whose mean final loss is lowest.

    `records` spectra of each run, three times as many for the first one, are evenly distributed over the logarithm of
    the loss.
    """
    rate = best_rate(training.final_losses([kind], depth)[kind], training.rates)
    # Keep every epoch, because the selection depends on all losses.
    history = list(training.descend(kind, depth, rate, 1))
    hessian = _hessian_function(training, kind, depth)
    for run in range(training.starts):
        loss = np.array([record.loss[run] for record in history])
        chosen = _spread_over_loss(loss, records * (3 if run == 0 else 1))
        # The rate was chosen with different rounding, so that a run may still diverge and end early.
        finite = np.isfinite(np.array([np.sum(record.weights[run]) for record in history])) & np.isfinite(loss)
        chosen = [epoch for epoch in chosen if finite[: epoch + 1].all()]
        spectra = summarize_hessians(hessian(history[epoch].weights[run]) for epoch in chosen)
        for epoch, spectrum in zip(chosen, spectra, strict=True):
            yield TrajectoryRow(
                activation=training.activation,
                kind=kind,
                depth=depth,
                run=run,
                rate=rate,
                epoch=epoch,
                loss=float(loss[epoch]),
                max_abs=spectrum.max_abs,
                p10_abs=spectrum.p10_abs,
                index=spectrum.index,
                gradient_norm=float(history[epoch].gradient_norm[run]),
            )


def _hessian_function(
    training: Training, kind: str, depth: int
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Return the dense Hessian as a function of the weights, with ReLUs by automatic differentiation."""
    problem, network = training.problem, training.networks[kind]
    if training.activation == "linear":
        sxx, syx, _ = problem.statistics
        return lambda W: linear.shortcut_hessian(W, sxx, syx, shortcut=network.shortcut)

    from idmatters_tf.curvature import HessianOperator
    from idmatters_tf.models.linear import assign_weights
    from trainers.shortcuts.theorem1 import half_squares, zero_network

    units = depth // network.shortcut_depth
    model = zero_network(len(problem.X), units, network.shortcut_depth, mid="relu", shortcut=network.shortcut)
    data = (problem.X.T, problem.Y.T)
    # This chunk is faster for these small networks than the operator's default, 0.5 s against 0.8 s.
    operator = HessianOperator(  # pyright: ignore[reportCallIssue] - SciPy's stubs of LinearOperator.__new__
        model, half_squares, data, batch_size=len(data[0]), chunk=128, check=False
    )

    def hessian(W: NDArray[np.float64]) -> NDArray[np.float64]:
        assign_weights(model, W)
        return np.asarray(operator.to_dense(), np.float64)

    return hessian


def _spread_over_loss(loss: NDArray[np.float64], count: int) -> list[int]:
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


def _curves(rows: Sequence[TrajectoryRow], quantity: str) -> list[NDArray[np.float64]]:
    """Return log10 of the losses and the values of a quantity, (2, records), ordered by the loss, for each run."""
    value = QUANTITIES[quantity]
    runs = by_column([row for row in rows if row.loss > 0], "run").values()
    return [np.array(sorted((np.log10(row.loss), value(row)) for row in run)).T for run in runs]


def interpolate(rows: Sequence[TrajectoryRow], quantity: str, grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Interpolate one of `QUANTITIES` linearly in log10 of the loss, with NaN outside of a run's range of losses.

    The result has shape (runs, grid).
    """
    return np.array([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in _curves(rows, quantity)])


def at_common_losses(
    kinds: Sequence[Sequence[TrajectoryRow]], quantity: str, points: int = 40
) -> list[NDArray[np.float64]] | None:
    """Return the means of a quantity over runs at losses common to all kinds of network, or None without such losses.

    There is an array (points,) for each kind. The losses are logarithmically spaced, in ascending order.
    """
    curves = [_curves(rows, quantity) for rows in kinds]
    if not all(curves):
        return None
    losses = [x for kind in curves for x, _ in kind]
    low, high = max(x[0] for x in losses), min(x[-1] for x in losses)
    if low >= high:
        return None
    grid = np.linspace(low, high, points)
    return [np.nanmean(interpolate(rows, quantity, grid), axis=0) for rows in kinds]


def verdict(rows: Sequence[TrajectoryRow]) -> list[Verdict]:
    """Compare the kinds of network at the losses that two of them reach, in the rows of one activation.

    There is a verdict for each claim of the paper: the condition numbers of 2-shortcuts are always smaller (Figures 6
    and 7), their index is always smaller (Figure 8), and 1-shortcuts behave like orthogonal networks (section 5).
    """
    kinds, activation = by_column(rows, "kind"), rows[0].activation
    ours = kinds.pop("2-shortcut")
    conditions, indices = (_excess(kinds, ours, quantity) for quantity in ("log10_condition", "index"))
    if not conditions:
        return [Verdict(None, f"{activation}, 2-shortcuts have no losses in common with other kinds")]
    by_kind = [
        f"{100 * np.mean(excess > 0):.0f} % with {kind} (x {10 ** excess[-len(excess) // 3 :].mean():.3g} in the upper "
        f"third, x {10 ** excess[: len(excess) // 3].mean():.3g} in the lower)"
        for kind, excess in conditions.items()
    ]
    text = f"{activation}, share of common losses at which 2-shortcuts have the smaller condition number: "
    verdicts = [Verdict(_always_positive(conditions), text + ", ".join(by_kind))]

    first = [row for row in ours if row.run == 0]
    peak = max(first, key=lambda row: row.gradient_norm)
    by_kind = [f"{100 * np.mean(excess > 0):.0f} % with {kind}" for kind, excess in indices.items()]
    text = (
        f"{activation}, share of common losses at which 2-shortcuts have the smaller index: {', '.join(by_kind)}; "
        f"their index is {first[0].index:.2f} at the start, {peak.index:.2f} at the largest gradient (epoch "
        f"{peak.epoch}), {first[-1].index:.2f} at the end"
    )
    verdicts.append(Verdict(_always_positive(indices), text))

    orthogonal, one = kinds.get("orthogonal", []), {"1-shortcut": kinds.get("1-shortcut", [])}
    apart, indices = (_excess(one, orthogonal, quantity) for quantity in ("log10_condition", "index"))
    for kind in apart.keys() & conditions.keys():
        near, far = np.abs(apart[kind]), np.abs(conditions[kind])
        text = (
            f"{activation}, condition number of 1-shortcuts closer to that of orthogonal (a factor of "
            f"{10 ** near.mean():.3g} in the mean over common losses, at most {10 ** near.max():.3g}) than to that of "
            f"2-shortcuts ({10 ** far.mean():.3g}); index within {np.abs(indices[kind]).max():.3f} of orthogonal's"
        )
        verdicts.append(Verdict(bool(near.mean() < far.mean()), text))
    return verdicts


def _always_positive(excesses: Mapping[str, NDArray[np.float64]]) -> bool:
    return all((excess > 0).all() for excess in excesses.values())


def _excess(
    others: Mapping[str, Sequence[TrajectoryRow]], ours: Sequence[TrajectoryRow], quantity: str
) -> dict[str, NDArray[np.float64]]:
    """Return a quantity of other kinds minus ours at the common losses, ascending, without kinds that share none."""
    found = {kind: at_common_losses([theirs, ours], quantity) for kind, theirs in others.items()}
    return {kind: pair[0] - pair[1] for kind, pair in found.items() if pair is not None}


def draw(rows: Sequence[TrajectoryRow]) -> Figure:
    """Draw eigenvalues and index against the loss for each activation, as means over the runs."""
    activations = by_column(rows, "activation")
    figure, axes = panels(2 * len(activations))
    for place, (activation, chosen) in enumerate(activations.items()):
        eigenvalues, index = axes[2 * place : 2 * place + 2]
        log10_losses = [np.log10(row.loss) for row in chosen if row.loss > 0]
        grid = np.linspace(min(log10_losses), max(log10_losses), 200)
        for kind, by_kind in by_column(chosen, "kind").items():
            for panel, quantity, style in (
                (eigenvalues, "log10_max_abs", "-"),
                (eigenvalues, "log10_p10_abs", "--"),
                (index, "index", "-"),
            ):
                curves = interpolate(by_kind, quantity, grid)
                there = np.isfinite(curves).any(axis=0)
                panel.plot(grid[there], np.nanmean(curves[:, there], axis=0), style, color=COLORS[kind])
        loss = "log10(loss - optimum)" if activation == "linear" else "log10 loss"
        for panel, label in ((eigenvalues, "log10 |eigenvalue|"), (index, "index")):
            panel.set(title=f"{activation}, depth {chosen[0].depth}; Figures 6 to 8", xlabel=loss, ylabel=label)
    handles = [make_legend_entry(kind, color=COLORS[kind]) for kind in KINDS]
    handles += [make_legend_entry("largest |eigenvalue|, index"), make_legend_entry("10th percentile", linestyle="--")]
    add_legend(figure, handles)
    return figure


def draw_single(rows: Sequence[TrajectoryRow]) -> Figure:
    """Draw gradient norm and index of one run of a 2-shortcut network against epochs (Figure 8, right)."""
    activations = by_column([row for row in rows if row.kind == "2-shortcut" and row.run == 0], "activation")
    figure, axes = panels(len(activations))
    for panel, (activation, chosen) in zip(axes, activations.items(), strict=True):
        line(panel, chosen, "epoch", "gradient_norm", color="tab:blue")
        panel.set(title=f"2-shortcut, {activation}, one run; Figure 8 right", xlabel="epoch")
        panel.set_xscale("symlog", linthresh=10)
        panel.set_ylabel("gradient norm", color="tab:blue")
        right = panel.twinx()
        line(right, chosen, "epoch", "index", color="tab:red")
        right.set_ylabel("index", color="tab:red")
    return figure


EXPERIMENT = Experiment(
    "trajectory", cases, measure, {"trajectory": draw, "single": draw_single}, verdict, verdict_by="activation"
)
