"""Largest stable learning rates of SGD: measured by short runs, and predicted from the profiles of small depths."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import gmean

from idmatters_tf.depth import DepthProfile, fit_power_law
from trainers.cli.arguments import RunError
from trainers.depth.blocks import Problem

# First factor of a search; ratio of the ends of its last interval; steps whose mean loss is that of the end.
FACTOR, RATIO, LAST = 1.5, 1.1, 20


@dataclasses.dataclass(frozen=True)
class Rate:
    """Largest stable learning rate of one network.

    Attributes:
        depth, seed: the network.
        measured: the largest stable rate, to 5 %.
        by_rates: prediction by the power law of the rates measured at the depths of the profile; NaN at these depths.
        by_curvature: prediction by the power law of 2 / lambda at these depths, times the geometric mean of the ratio
            of the measured rates to 2 / lambda.
        loss_at_start, loss: of the first batch, and the mean over the last 20 batches at the largest stable rate tried.
    """

    depth: int
    seed: int
    measured: float
    by_rates: float
    by_curvature: float
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
            return losses.max() <= 2 * start and end < start

        low, high = bisect(is_stable, guess)
        return float(np.sqrt(low * high)), float(start), float(ends[low])


def bisect(is_stable: Callable[[float], bool], guess: float) -> tuple[float, float]:
    """Return a stable and an unstable rate whose ratio is at most 1.1.

    Raises:
        RunError: after 60 rates.
    """
    low, high, rate = 0.0, np.inf, guess
    for _ in range(60):
        if high <= RATIO * low:
            return low, high
        if is_stable(rate):
            low = rate
        else:
            high = rate
        rate = FACTOR * low if high == np.inf else high / FACTOR if low == 0 else float(np.sqrt(low * high))
    raise RunError(
        f"all learning rates from {guess:.2g} to {rate:.2g} are alike, stable or unstable.",
        "The loss may not fall in so few steps: use more --steps or a larger --batch-size.",
    )


def measure_rates(
    problem: Problem, profile: DepthProfile, seeds: int, rates: Sequence[int], steps: int, batch_size: int
) -> list[Rate]:
    """Measure the largest stable rates at the depths of a profile, and predict and measure those at other depths."""
    thresholds = {(m.depth, m.seed): m.values["sgd_rate"] for m in profile.measurements}

    def measure(depth: int, by_rates: float = np.nan, by_curvature: float = np.nan) -> list[Rate]:
        runs, guess, row = ShortRuns(problem, depth, steps, batch_size), by_rates, []
        for seed in range(seeds):
            keras.utils.set_random_seed(seed)
            weights = problem.build(depth).get_weights()
            guess = thresholds[depth, seed] if np.isnan(guess) else guess
            guess, start, end = runs.find(weights, guess, seed)
            row.append(Rate(depth, seed, guess, by_rates, by_curvature, start, end))
            print(f"depth {depth}, seed {seed}: largest stable rate {guess:.3g}, loss {start:.3f} to {end:.3f}")
        keras.backend.clear_session()
        return row

    found = [rate for depth in profile.depths for rate in measure(depth)]
    law = fit_power_law([rate.depth for rate in found], [rate.measured for rate in found])
    factor = gmean([rate.measured / thresholds[rate.depth, rate.seed] for rate in found])
    for depth in sorted({*rates} - {*profile.depths}):
        by_curvature = factor * profile.laws["sgd_rate"].predict(depth).value
        found += measure(depth, law.predict(depth).value, float(by_curvature))
    return found


def ratios(rates: Sequence[Rate], prediction: str) -> dict[int, float]:
    """Return the geometric mean of measured over predicted rates at each depth that has a prediction."""
    predicted = [rate for rate in rates if np.isfinite(rate.by_rates)]
    return {
        depth: float(gmean([rate.measured / getattr(rate, prediction) for rate in predicted if rate.depth == depth]))
        for depth in sorted({rate.depth for rate in predicted})
    }


def verdicts(rates: Sequence[Rate]) -> list[str]:
    """Return a sentence about each kind of prediction."""
    sentences = []
    for prediction, source in (("by_rates", "the measured rates"), ("by_curvature", "2 / lambda")):
        found = ratios(rates, prediction)
        numbers = ", ".join(f"{ratio:.2f} at depth {depth}" for depth, ratio in found.items())
        worst = max(max(ratio, 1 / ratio) for ratio in found.values())
        sentences.append(
            f"The largest stable rate of SGD, relative to the prediction by the power law of {source}, is {numbers}: "
            f"within a factor of {worst:.2f}."
        )
    return sentences


def draw(rates: Sequence[Rate]) -> Figure:
    """Return a figure of measured and predicted rates."""
    figure = Figure(figsize=(4.5, 3.6), layout="constrained")
    axes = figure.subplots()
    draw_rates(axes, rates)
    axes.set(xlabel="number of blocks", ylabel="largest stable rate of SGD")
    axes.legend(fontsize=8)
    return figure


def draw_rates(axes: Any, rates: Sequence[Rate]) -> None:
    """Draw measured and predicted rates against depth."""
    axes.loglog([rate.depth for rate in rates], [rate.measured for rate in rates], "o", markersize=4, label="measured")
    for name, style, label in (("by_rates", "C1x-", "by rates"), ("by_curvature", "C2x--", "by 2 / \u03bb")):
        predicted = [getattr(rate, name) for rate in rates]
        axes.plot([rate.depth for rate in rates], predicted, style, label=f"predicted {label}", markersize=4)
    depths = sorted({rate.depth for rate in rates})
    axes.set_xticks(depths, [f"{depth:.0f}" for depth in depths])
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes.grid(alpha=0.3)
