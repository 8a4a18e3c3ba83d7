"""Training of several runs of each kind of network: final losses, best learning rates and histories."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmatters_tf import linear
from trainers.shortcuts.data import Problem
from trainers.shortcuts.networks import (
    LINEAR_NETWORKS,
    RELU_NETWORKS,
    Epoch,
    ShortcutNetwork,
    linear_descent,
    relu_descent,
)
from trainers.shortcuts.settings import NormsSettings, SweepSettings, TrajectorySettings

# Four per decade. All networks of the default depths diverge at the largest rate, so that the best rates are inside.
RATES = np.logspace(-3, 1, 17)


def best_rate(losses: NDArray[np.float64], rates: ArrayLike) -> float:
    """Return the rate with the lowest mean of the final losses, (runs, rates); no run may diverge at the best rate."""
    means = np.where(np.isfinite(losses), losses, np.inf).mean(axis=0)
    return float(np.asarray(rates)[np.argmin(means)])


@dataclasses.dataclass(frozen=True)
class Training:
    """Full-batch gradient descent of several runs of each kind of network, which differ in their starts."""

    problem: Problem
    activation: str  # "linear" or "relu"
    rates: NDArray[np.float64]  # (rates,), ascending; the best one is used
    starts: int  # number of runs of each kind
    epochs: int  # number of updates
    seed: int  # seed of the starts

    @property
    def networks(self) -> Mapping[str, ShortcutNetwork]:
        """Kinds of network to compare, by name."""
        return LINEAR_NETWORKS if self.activation == "linear" else RELU_NETWORKS

    def initial_weights(self, kind: str, depth: int) -> NDArray[np.float64]:
        """Return the starts of networks with `depth` layers, (starts, units, shortcut_depth, d, d)."""
        return self.networks[kind].starts(depth, len(self.problem.X), self.starts, self.seed)

    def final_losses(self, kinds: Iterable[str], depth: int) -> dict[str, NDArray[np.float64]]:
        """Return the losses at the end of training, minus the optimum for linear networks.

        They are arrays (starts, rates) of float64 by kind, not finite for diverged runs.
        """
        problem, count = self.problem, len(self.rates)
        if self.activation == "linear":
            named = {kind: (self.initial_weights(kind, depth), self.networks[kind].shortcut) for kind in kinds}
            sxx, syx, _ = problem.statistics
            found = linear.sweep(named, sxx, syx, self.rates, self.epochs, record_every=self.epochs)
            return {kind: trajectories.excess_risk[..., -1] for kind, trajectories in found.items()}
        losses = {}
        for kind in kinds:
            W, rates = np.repeat(self.initial_weights(kind, depth), count, axis=0), np.tile(self.rates, self.starts)
            shortcut, epochs = self.networks[kind].shortcut, self.epochs
            *_, last = relu_descent(W, problem.X, problem.Y, rates, epochs, shortcut, epochs, "float32")
            losses[kind] = last.loss.reshape(self.starts, count).astype(np.float64)
        return losses

    def descend(self, kind: str, depth: int, rate: float, every: int) -> Iterator[Epoch]:
        """Train all runs of one kind with one learning rate; see `relu_descent` for the records."""
        W, rates, shortcut = self.initial_weights(kind, depth), np.full(self.starts, rate), self.networks[kind].shortcut
        problem = self.problem
        if self.activation == "linear":
            return linear_descent(W, problem.statistics, rates, self.epochs, shortcut, every)
        return relu_descent(W, problem.X, problem.Y, rates, self.epochs, shortcut, every)


def trainings(problem: Problem, settings: SweepSettings | NormsSettings | TrajectorySettings) -> Iterator[Training]:
    """Yield the training with each activation; linear networks use all examples."""
    descent, starts, seed = settings.descent, settings.networks.starts, settings.run.seed
    rates = np.sort(np.asarray(descent.rates, dtype=float)) if descent.rates else RATES
    for activation in descent.activations:
        data = problem if activation == "linear" else problem.first(descent.samples)
        yield Training(data, activation, rates, starts, descent.epochs, seed)
