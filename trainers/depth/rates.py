"""Largest stable learning rates of SGD: measured by short runs, and predicted from the profiles of small depths."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf.depth import DepthProfile
from trainers.depth.blocks import Problem

# First factor of a search; ratio of the ends of its last interval; steps whose mean loss is that of the end.
FACTOR, RATIO, LAST = 1.5, 1.1, 20


@dataclasses.dataclass(frozen=True)
class Rate:
    """Largest stable learning rate of one network.

    Attributes:
        depth, seed: the network.
        measured: the largest stable rate, to 5 %.
        predicted: the prediction.
        loss_at_start, loss: of the first batch, and the mean over the last 20 batches at the largest stable rate tried.
    """

    depth: int
    seed: int
    measured: float
    predicted: float
    loss_at_start: float
    loss: float


class ShortRuns:
    """Short runs of SGD from given weights, on batches that depend on a seed."""

    def __init__(self, problem: Problem, depth: int, steps: int, batch_size: int):
        self.problem, self.steps, self.batch_size = problem, steps, batch_size
        self.model = problem.build(depth)
        self.model.compile(keras.optimizers.SGD(), problem.loss)

    def losses(self, weights: Sequence[NDArray[Any]], rate: float, seed: int) -> NDArray[np.float64]:
        """Train, and return the losses of the batches, up to the first one above twice that of the first batch."""
        model, problem = self.model, self.problem
        model.set_weights(weights)
        assert model.optimizer is not None
        model.optimizer.learning_rate = rate
        rng, losses = np.random.default_rng(seed), []
        while len(losses) < self.steps and (not losses or losses[-1] <= 2 * losses[0]):
            rows = rng.integers(0, len(problem.train_x), self.batch_size)
            model.reset_metrics()
            losses.append(float(np.ravel(model.train_on_batch(problem.train_x[rows], problem.train_y[rows]))[0]))
        return np.array(losses)

    def find(self, weights: Sequence[NDArray[Any]], guess: float, seed: int) -> tuple[float, float, float]:
        """Return the largest stable rate, the loss at the start, and the loss after the run at this rate.

        A run is stable if no batch has more than twice the loss of the first one, and the mean over the last batches is
        below the loss of the first one.
        """
        ends: dict[float, float] = {}
        start = np.nan

        def is_stable(rate: float) -> bool:
            nonlocal start
            losses = self.losses(weights, rate, seed)
            start, end = losses[0], losses[-LAST:].mean()
            ends[rate] = end
            return len(losses) == self.steps and losses[-1] <= 2 * start and end < start

        low, high = bisect(is_stable, guess)
        return float(np.sqrt(low * high)), float(start), float(ends[low])


def bisect(is_stable: Callable[[float], bool], guess: float) -> tuple[float, float]:
    """Return a stable and an unstable rate whose ratio is at most 1.1."""
    low, high, rate = 0.0, np.inf, guess
    while not high <= RATIO * low:
        if is_stable(rate):
            low = rate
        else:
            high = rate
        rate = FACTOR * low if high == np.inf else high / FACTOR if low == 0 else float(np.sqrt(low * high))
    return low, high


def measure_rates(
    problem: Problem, profile: DepthProfile, seeds: int, rates: Sequence[int], steps: int, batch_size: int
) -> list[Rate]:
    """Measure the largest stable rates at the depths of a profile and at further ones, and predict them.

    A prediction is the power law of 2 / lambda times a factor: the geometric mean of the ratio of the measured rate to
    2 / lambda over the networks of the profile.
    """
    starts = {(m.depth, m.seed): m.values["sgd_rate"] for m in profile.measurements}
    found: list[Rate] = []
    factors: list[float] = []
    for depth in sorted({*profile.depths, *rates}):
        factor = float(np.exp(np.mean(np.log(factors)))) if depth not in profile.depths else np.nan
        predicted = factor * profile.laws["sgd_rate"].predict(depth).value
        runs = ShortRuns(problem, depth, steps, batch_size)
        for seed in range(seeds):
            keras.utils.set_random_seed(seed)
            weights = problem.build(depth).get_weights()
            guess = starts.get((depth, seed), predicted) * (factors[-1] if factors and depth in profile.depths else 1)
            measured, start, end = runs.find(weights, guess, seed)
            if depth in profile.depths:
                factors.append(measured / starts[depth, seed])
            found.append(Rate(depth, seed, measured, predicted, start, end))
    return found


def ratios(rates: Sequence[Rate]) -> dict[int, float]:
    """Return the geometric mean of measured over predicted rates at each depth that has a prediction."""
    depths = sorted({rate.depth for rate in rates if np.isfinite(rate.predicted)})
    return {
        depth: float(np.exp(np.mean([np.log(rate.measured / rate.predicted) for rate in rates if rate.depth == depth])))
        for depth in depths
    }


def verdict(rates: Sequence[Rate]) -> str:
    """Return a sentence about the predictions."""
    found = ratios(rates)
    numbers = ", ".join(f"{ratio:.2f} at depth {depth}" for depth, ratio in found.items())
    worst = max(max(ratio, 1 / ratio) for ratio in found.values())
    return f"The largest stable rate of SGD is the predicted one times {numbers}; the largest factor is {worst:.2f}."


def draw(rates: Sequence[Rate]) -> Figure:
    """Draw measured and predicted rates against depth."""
    figure = Figure(figsize=(4.5, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.loglog([rate.depth for rate in rates], [rate.measured for rate in rates], "o", label="measured")
    predicted = {rate.depth: rate.predicted for rate in rates}
    axes.plot(predicted, predicted.values(), label="predicted")
    axes.set(xlabel="depth", ylabel="largest stable rate of SGD")
    axes.set_xticks(list(predicted), list(map(str, predicted)))
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
