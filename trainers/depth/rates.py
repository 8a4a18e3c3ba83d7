"""Largest stable learning rates of SGD: measured by short runs, and predicted from networks of small depths."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import gmean

from idmatters_tf.depth import DepthProfile
from idmatters_tf.isometry import find_blocks
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
        by_blocks: prediction by the deepest network of the profile in place of this one, see `ShortRuns`; NaN at the
            depths of the profile.
        by_curvature: prediction by the power law of 2 / lambda at these depths, times the geometric mean of the ratio
            of the measured rates to 2 / lambda; NaN at these depths.
        loss_at_start, loss: of the first batch, and the mean over the last 20 batches at the largest stable rate tried.
    """

    depth: int
    seed: int
    measured: float
    by_blocks: float
    by_curvature: float
    loss_at_start: float
    loss: float


class FactorSGD(keras.optimizers.SGD):
    """SGD with factors of the learning rate for some variables, by their paths."""

    def __init__(self, factors: Mapping[str, float]):
        super().__init__()
        self.factors = factors

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Apply one step to the variables."""
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        pairs = zip(grads, variables, strict=True)
        super().apply([g * self.factors[v.path] if v.path in self.factors else g for g, v in pairs], variables)


class ShortRuns:
    """Short runs of SGD from given weights, on batches that depend on a seed, of a network in place of a deeper one.

    Each block takes the place of s = target / depth blocks with independent weights. The last layer of its branch is
    multiplied by sqrt(s), as the sum of s random branches is, and learns s times as fast, as their sum does. The other
    weights of the block learn s times as slowly: then what they add to the output grows as in one of the s blocks.
    """

    def __init__(self, problem: Problem, depth: int, steps: int, batch_size: int, target: int | None = None):
        self.problem, self.steps, self.batch_size = problem, steps, batch_size
        self.model, self.copies = problem.build(depth), (target or depth) / depth
        blocks = find_blocks(self.model, problem.block_names(depth)) if self.copies != 1 else ()
        inside = [variable.path for block in blocks for variable in block.variables]
        self.ends = [path for path in inside if path.endswith(problem.branch_ends)]
        factors = {path: self.copies if path in self.ends else 1 / self.copies for path in inside}
        self.model.compile(FactorSGD(factors), problem.loss)

    def losses(self, weights: Sequence[NDArray[Any]], rate: float, seed: int) -> NDArray[np.float64]:
        """Train, and return the losses of the batches, up to the first one above twice that of the first batch."""
        model, problem = self.model, self.problem
        pairs = zip(weights, model.weights, strict=True)
        model.set_weights([w * self.copies**0.5 if v.path in self.ends else w for w, v in pairs])
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
    guess = thresholds[profile.depths[0], 0]

    def search(depth: int, target: int) -> list[tuple[float, float, float]]:
        """Return the largest stable rate with its losses for each seed, of a network in place of that of the target."""
        nonlocal guess
        runs, found = ShortRuns(problem, depth, steps, batch_size, target), []
        name = f"depth {depth}" if depth == target else f"depth {depth} in place of {target}"
        for seed in range(seeds):
            keras.utils.set_random_seed(seed)
            found.append(runs.find(problem.build(depth).get_weights(), guess, seed))
            guess, start, end = found[-1]
            print(f"{name}, seed {seed}: largest stable rate {guess:.3g}, loss {start:.3f} to {end:.3f}", flush=True)
        keras.backend.clear_session()
        return found

    found = []
    for depth in profile.depths:
        found += [Rate(depth, n, rate, np.nan, np.nan, *ends) for n, (rate, *ends) in enumerate(search(depth, depth))]
    factor = gmean([rate.measured / thresholds[rate.depth, rate.seed] for rate in found])
    for depth in sorted({*rates} - {*profile.depths}):
        by_curvature = float(factor * profile.laws["sgd_rate"].predict(depth).value)
        pairs = zip(search(profile.depths[-1], depth), search(depth, depth), strict=True)
        for seed, ((by_blocks, *_), (measured, *ends)) in enumerate(pairs):
            found.append(Rate(depth, seed, measured, by_blocks, by_curvature, *ends))
    return found


def ratios(rates: Sequence[Rate], prediction: str) -> dict[int, float]:
    """Return the geometric mean of measured over predicted rates at each depth that has a prediction."""
    predicted = [rate for rate in rates if np.isfinite(rate.by_blocks)]
    return {
        depth: float(gmean([rate.measured / getattr(rate, prediction) for rate in predicted if rate.depth == depth]))
        for depth in sorted({rate.depth for rate in predicted})
    }


def verdicts(rates: Sequence[Rate]) -> list[str]:
    """Return a sentence about each kind of prediction."""
    sentences = []
    for prediction, source in (
        ("by_blocks", "few blocks in place of many"),
        ("by_curvature", "the power law of 2 / lambda"),
    ):
        found = ratios(rates, prediction)
        numbers = ", ".join(f"{ratio:.2f} at depth {depth}" for depth, ratio in found.items())
        worst = max(max(ratio, 1 / ratio) for ratio in found.values())
        sentences.append(
            f"The largest stable rate of SGD, relative to the prediction by {source}, is {numbers}: "
            f"within a factor of {worst:.2f}."
        )
    return sentences


def draw(rates: Sequence[Rate]) -> Figure:
    """Return a figure of measured and predicted rates."""
    figure = Figure(figsize=(4.5, 3.6), layout="constrained")
    axes = figure.subplots()
    depths = sorted({rate.depth for rate in rates})
    axes.loglog([rate.depth for rate in rates], [rate.measured for rate in rates], "o", markersize=4, label="measured")
    for name, style, label in (("by_blocks", "C1x-", "by few blocks"), ("by_curvature", "C2x--", "by 2 / \u03bb")):
        means = [gmean([getattr(rate, name) for rate in rates if rate.depth == depth]) for depth in depths]
        axes.plot(depths, means, style, label=f"predicted {label}", markersize=4)
    axes.set_xticks(depths, [f"{depth:.0f}" for depth in depths])
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes.grid(alpha=0.3)
    axes.set(xlabel="number of blocks", ylabel="largest stable rate of SGD")
    axes.legend(fontsize=8)
    return figure
