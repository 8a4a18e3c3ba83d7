"""The final losses of networks at many learning rates, and the best rate."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmatters_tf import linear
from trainers.shortcuts.data import Problem
from trainers.shortcuts.networks import networks_with, relu_descent

# Four a decade. At the largest all networks of the default depths diverge, so that the best rates lie inside.
RATES = np.logspace(-3, 1, 17)


def chosen_rates(rates: Sequence[float] | None) -> NDArray[np.float64]:
    """The rates asked for in ascending order, or `RATES`."""
    return np.sort(np.asarray(rates, dtype=float)) if rates else RATES


def best_rate(losses: NDArray[np.float64], rates: ArrayLike) -> float:
    """The rate with the lowest mean of the final losses over the runs; at none of them may the best one diverge.

    Args:
        losses: (runs, rates), not finite where a run diverged.
        rates: (rates,).
    """
    means = np.where(np.isfinite(losses), losses, np.inf).mean(axis=0)
    return float(np.asarray(rates)[np.argmin(means)])


def final_losses(
    problem: Problem,
    kinds: Iterable[str],
    depth: int,
    activation: str,
    rates: NDArray[np.float64],
    starts: int,
    epochs: int,
    seed: int,
) -> dict[str, NDArray[np.float64]]:
    """The losses at the end of training, less the optimum for linear networks.

    Args:
        problem: the data.
        kinds: of network, see `networks_with`.
        depth: in layers.
        activation: "linear" or "relu".
        rates: (rates,).
        starts: the number of runs of each kind.
        epochs: updates.
        seed: of the starts.

    Returns:
        By kind, (starts, rates) float64, not finite where a run diverged.
    """
    networks = {kind: networks_with(activation)[kind] for kind in kinds}
    weights = {kind: network.starts(depth, len(problem.X), starts, seed) for kind, network in networks.items()}
    if activation == "linear":
        named = {kind: (W, networks[kind].shortcut) for kind, W in weights.items()}
        sxx, syx, _ = problem.statistics
        found = linear.sweep(named, sxx, syx, rates, epochs, record_every=epochs)
        return {kind: trajectories.excess_risk[..., -1] for kind, trajectories in found.items()}
    losses = {}
    for kind, W in weights.items():
        each = np.tile(rates, starts)
        W = np.repeat(W, len(rates), axis=0)
        *_, last = relu_descent(W, problem.X, problem.Y, each, epochs, networks[kind].shortcut, epochs, "float32")
        losses[kind] = last.loss.reshape(starts, len(rates)).astype(np.float64)
    return losses
