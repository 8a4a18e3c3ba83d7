"""Learning rates of short trainings: the best and the largest stable one, of one model and across depth."""

import dataclasses
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import positive_integer
from idmatters_tf._keras_types import Data, Loss
from idmatters_tf._presentation.progress import Progress
from idmatters_tf._presentation.results import Axes, Drawing, Figure, Result, tabulate
from idmatters_tf.branches.named import LastNames
from idmatters_tf.depth.scale import scale_branches
from idmatters_tf.depth.trials import MakeOptimizer, Trials

# Rates of a search are START times powers of STEP; neighbors in its first pass differ by STEP^COARSE. No more than MOST
# are tried at a depth.
START, STEP, COARSE, MOST = 0.01, math.sqrt(2), 4, 20
# Relative error of a mean loss.
ROUNDING = 1e-5


@dataclasses.dataclass(frozen=True, repr=False)
class RateCurve(Result, Drawing):
    """Loss after short trainings against the learning rate, for one model. `plot(path)` draws it.

    Attributes:
        rates: learning rates in ascending order, (n,).
        losses: mean loss of the last tenth of the steps, (n, seeds); infinite for unstable trainings.
        first: mean loss of the same batches without training, (seeds,).
    """

    rates: NDArray[np.float64]
    losses: NDArray[np.float64]
    first: NDArray[np.float64]

    @property
    def best(self) -> float:
        """Rate of the lowest mean loss: the vertex of a parabola in log rate through it and its neighbors.

        The rate itself at the ends of the rates and beside unstable ones. NaN if no rate is stable.
        """
        means = self.losses.mean(axis=1)
        index = int(np.argmin(means))
        near = slice(index - 1, index + 2)
        if not np.isfinite(means[index]):
            return math.nan
        if index in (0, len(means) - 1) or not np.isfinite(means[near]).all():
            return float(self.rates[index])
        x = np.log(self.rates[near] / self.rates[index])
        bend, slope, _ = np.polyfit(x, means[near], 2)
        return float(self.rates[index] * np.exp(-slope / (2 * bend))) if bend > 0 else float(self.rates[index])

    @property
    def largest_stable(self) -> float:
        """Largest rate at which at least half of the trainings are stable; NaN if there is none."""
        stable = self.rates[np.isfinite(self.losses).mean(axis=1) >= 0.5]
        return float(stable.max()) if len(stable) else math.nan

    @property
    def smallest_unstable(self) -> float:
        """Smallest rate above `largest_stable` at which training is unstable.

        Infinite if none was tried: `largest_stable` is then only a lower bound.
        """
        above = self.rates[~(self.rates <= self.largest_stable)]
        return float(above.min(initial=math.inf))

    @property
    def lowest_loss(self) -> float:
        """Lowest mean over the seeds of the loss after training; infinite if no rate is stable."""
        return float(self.losses.mean(axis=1).min())

    def table(self) -> str:
        """Return a table of the losses at each rate."""
        header = ("rate", *(f"loss, seed {seed}" for seed in range(self.losses.shape[1])))
        return tabulate(header, np.column_stack([self.rates, self.losses]).tolist())

    def draw(self, figure: Figure) -> None:
        """Draw the losses of all seeds, their means, and both rates."""
        axes = figure.subplots()
        axes.set(xlabel="learning rate", ylabel="loss after training", xscale="log")
        self.draw_on(axes, "C0", "loss")
        axes.axvline(self.best, color="C1", label="best")
        axes.axvline(self.largest_stable, color="C3", linestyle=":", label="largest stable")
        axes.legend()

    def draw_on(self, axes: Axes, color: str, label: str) -> None:
        """Draw the losses and their means on axes."""
        axes.plot(self.rates, np.where(np.isfinite(self.losses), self.losses, np.nan), ".", color=color, markersize=3)
        means = self.losses.mean(axis=1)
        axes.plot(self.rates[np.isfinite(means)], means[np.isfinite(means)], color=color, label=label)


@dataclasses.dataclass(frozen=True, repr=False)
class RateProfile(Result, Drawing):
    """Result of `rate_profile`. `plot(path)` draws loss against rate for each depth, and rates against depth.

    Attributes:
        curves: `RateCurve` by depth.
    """

    size: ClassVar = (9.0, 3.8)
    curves: dict[int, RateCurve]

    def rows(self) -> list[dict[str, float]]:
        """Return depth, rate, seed, first loss and loss after training of each training."""
        return [
            {"depth": depth, "rate": float(rate), "seed": seed, "first_loss": float(first), "loss": float(loss)}
            for depth, curve in self.curves.items()
            for rate, losses in zip(curve.rates, curve.losses, strict=True)
            for seed, (first, loss) in enumerate(zip(curve.first, losses, strict=True))
        ]

    def table(self) -> str:
        """Return a table with both rates and the lowest loss at each depth."""
        header = ("depth", "best rate", "largest stable", "unstable at", "first loss", "lowest loss")
        rows = [
            (depth, c.best, c.largest_stable, c.smallest_unstable, float(c.first.mean()), c.lowest_loss)
            for depth, c in self.curves.items()
        ]
        return tabulate(header, rows)

    def draw(self, figure: Figure) -> None:
        """Draw loss against rate for each depth, and both rates against depth."""
        from matplotlib import colormaps
        from matplotlib.colors import to_hex

        left, right = figure.subplots(1, 2)
        left.set(xlabel="learning rate", ylabel="loss after training", xscale="log")
        # Depths have an order, and other colors than the two rates.
        shades = colormaps["viridis"](np.linspace(0, 0.9, len(self.curves)))
        for shade, (depth, curve) in zip(shades, self.curves.items(), strict=True):
            color = to_hex(shade)
            curve.draw_on(left, color, f"depth {depth}")
            left.axvline(curve.best, color=color, linewidth=0.6, linestyle=":")
        depths = sorted(self.curves)
        right.set(xlabel="depth", ylabel="learning rate", xscale="log", yscale="log")
        for color, name in (("C1", "best"), ("C3", "largest_stable")):
            rates = [getattr(self.curves[depth], name) for depth in depths]
            right.plot(depths, rates, "o-", color=color, markersize=4, label=name.replace("_", " "))
        right.set_xticks(depths, list(map(str, depths)))
        right.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        for axes in (left, right):
            axes.grid(alpha=0.3)
            axes.legend(fontsize=7)


def rate_profile(
    build: Callable[[int, int], keras.Model],
    depths: Sequence[int],
    data: Data,
    loss: Loss = None,
    optimizer: MakeOptimizer | None = None,
    rates: Sequence[float] | NDArray[np.float64] | None = None,
    steps: int = 200,
    seeds: int = 2,
    *,
    base: int | None = None,
    last: LastNames | None = None,
    batch_size: int = 32,
    progress: bool = False,
) -> RateProfile:
    """Measure how the best and the largest stable learning rate depend on the depth of an architecture.

    Models of each depth are trained by `fit` for a few steps at several learning rates. All trainings of a model and
    seed have the same initial weights, the same random numbers and the same batches. Their losses are compared with
    those of the untrained model on the same batches: a training is stable if no tenth of it has a mean loss above
    twice that of the untrained model, and the last tenth has none above it. Trainings that diverge end early.

    Without `rates`, the rates are powers of the square root of 2, times 0.01: factors of 4 until the best rate lies
    inside, the neighbors of the best rate up to a factor of 2, and those at the edge of stability; at most 20 at a
    depth, typically 11. The cost is at most 21 x steps x seeds training steps at each depth.

    The best rate is that of short trainings, without a schedule. It may differ from that of a long one. Depth is the
    only thing that changes: for the transfer of rates between widths use a parametrization such as muP.

    Args:
        build: function (depth, seed) that returns a model. Keras' random seed is set before, so that it may ignore the
            seed unless it passes one to initializers or networks.
        depths: different depths.
        data: tuple of arrays or tensors (x, y), also lists and dicts of them, of which random batches are drawn by the
            seed; or batches that can be iterated repeatedly, such as a list, a `tf.data.Dataset` or a `PyDataset`. Of
            these, the first `steps` batches are taken once for each seed and kept in memory, with NumPy's and Python's
            global generators seeded. Data with another state, as of `Dataset.shuffle`, yield other batches in the next
            call.
        loss: a loss for `compile`; None for that of the compiled model, or for a model with its own `compute_loss` or
            `train_step`, which are used in any case.
        optimizer: function of a learning rate that returns an optimizer, such as `lambda rate:
            keras.optimizers.AdamW(rate, weight_decay=0.1)`; None for that of the compiled model, at constant rates.
        rates: learning rates; None for a search.
        steps: number of steps of a training.
        seeds: number of models at each depth.
        base: number of residual sums for which the models are scaled by `scale_depth`; None for models as they are.
        last: see `scale_depth`.
        batch_size: batch size for arrays.
        progress: True to show a progress bar on standard error.

    Returns:
        A `RateProfile`.

    Raises:
        ValueError: for arguments of other kinds, and for models without different weights for different seeds.
    """
    chosen = sorted({positive_integer("depths", depth) for depth in depths})
    if not chosen:
        raise ValueError("Argument `depths` must contain a depth. Received: none.")
    curves: dict[int, RateCurve] = {}
    start = START
    with Progress(sum(chosen), "rate profile", progress, unit="units") as bar:
        for depth in chosen:
            trials: Any = None
            starts = []
            for model in _build_models(build, depth, seeds):
                scaling = None if base is None else scale_branches(model, base, last=last)
                # The first model is trained, with the weights of the others.
                trials = trials or Trials(model, optimizer, data, loss, steps, batch_size, scaling)
                starts.append(_values(model))
            curves[depth] = _measure(trials, starts, rates, start)
            if rates is None and np.isfinite(best := curves[depth].best):
                start = START * STEP ** round(math.log(best / START, STEP))
            bar.advance(depth, f"depth {depth}")
            model = trials = None
    return RateProfile(curves)


def find_rate(
    model: keras.Model,
    data: Data,
    loss: Loss = None,
    optimizer: MakeOptimizer | None = None,
    rates: Sequence[float] | NDArray[np.float64] | None = None,
    steps: int = 200,
    seeds: int = 1,
    *,
    batch_size: int = 32,
) -> RateCurve:
    """Find the best and the largest stable learning rate of one model by short trainings, see `rate_profile`.

    Args:
        model: a built model. Its weights and compiled state, the states of its recurrent layers and Keras' global
            generator are the same afterwards.
        data: see `rate_profile`.
        loss: see `rate_profile`.
        optimizer: see `rate_profile`.
        rates: see `rate_profile`.
        steps: number of steps of a training.
        seeds: number of trainings at each rate, which differ in the batches of arrays and of data that draw.
        batch_size: batch size for arrays.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> keras.utils.set_random_seed(0)
    >>> x = np.random.default_rng(0).normal(size=(256, 8))
    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    >>> model.compile(keras.optimizers.SGD(), "mse")
    >>> curve = find_rate(model, (x, x.sum(axis=1)), steps=50)
    >>> 0.03 < curve.best <= curve.largest_stable < 3
    True
    """
    starts = [_values(model)] * positive_integer("seeds", seeds)
    return _measure(Trials(model, optimizer, data, loss, steps, batch_size), starts, rates)


def _build_models(build: Callable[[int, int], keras.Model], depth: int, seeds: int) -> Iterator[keras.Model]:
    """Yield a model for each seed, one at a time.

    Raises:
        ValueError: `build` is not a function, or returns equal weights for different seeds.
    """
    if isinstance(build, keras.Model) or not callable(build):
        raise ValueError(
            f"Argument `build` must be a function (depth, seed) that returns a model. Received: "
            f"{type(build).__name__}. Pass a function, such as lambda depth, seed: make_model(depth)."
        )
    seen: dict[int, int] = {}
    for seed in range(positive_integer("seeds", seeds)):
        gc.collect()
        keras.utils.set_random_seed(seed)
        model = build(depth, seed)
        weights = hash(b"".join(array.tobytes() for array in model.get_weights()))
        if (first := seen.setdefault(weights, seed)) != seed:
            raise ValueError(
                f"Function `build` must return different weights for different seeds. Received: equal weights "
                f"for the seeds {first} and {seed}. Pass the seed to initializers and networks, or use seeds=1."
            )
        yield model
        # Models contain reference cycles.
        del model


def _values(model: keras.Model) -> list[np.ndarray]:
    return [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in model.variables]


def _measure(
    trials: Trials,
    starts: Sequence[list[np.ndarray]],
    rates: Sequence[float] | NDArray[np.float64] | None,
    start: float = START,
) -> RateCurve:
    """Train from the start of each seed at given rates, or at those of a search from a start."""
    given = None if rates is None else sorted({float(rate) for rate in rates})
    if given is not None and not (given and 0 < given[0] <= given[-1] < math.inf):
        raise ValueError(f"Argument `rates` must contain positive learning rates. Received: {given}")
    losses: dict[float, list[float]] = {}
    with trials:
        before = [trials.losses_before(values, seed) for seed, values in enumerate(starts)]
        if not np.isfinite(before).all():
            raise ValueError(f"The loss before training must be finite. Received: {np.array(before).tolist()}")
        first = np.array([windows[-1] for windows in before])

        def train(rate: float) -> list[float]:
            """Record and return the losses after training at a rate, infinite for unstable trainings."""
            losses[rate] = []
            for seed, values in enumerate(starts):
                windows = trials.train(values, rate, seed, before[seed])
                limit = first[seed] + ROUNDING * abs(first[seed])
                is_stable = len(windows) == trials.windows and windows[-1] <= limit
                losses[rate].append(float(windows[-1]) if is_stable else np.inf)
            return losses[rate]

        if given is None:
            _search(lambda power: train(start * STEP**power))
        for rate in given or ():
            train(rate)
    tried = sorted(losses)
    return RateCurve(np.array(tried), np.array([losses[rate] for rate in tried]), first)


def _search(train: Callable[[int], list[float]]) -> None:
    """Train at the rates that `rate_profile` describes, powers of `STEP`."""
    tried: dict[int, list[float]] = {}

    def attempt(*powers: int) -> None:
        for power in powers:
            if power not in tried and len(tried) < MOST:
                tried[power] = train(power)

    def best() -> int:
        """Return the power of the lowest mean loss; the smallest power if no rate is stable."""
        return min(sorted(tried), key=lambda power: np.mean(tried[power]))

    def is_stable(power: int) -> bool:
        return bool(np.isfinite(tried[power]).mean() >= 0.5)

    attempt(0, -COARSE, COARSE)
    while len(tried) < MOST and (best() == min(tried) or is_stable(max(tried))):
        attempt(min(tried) - COARSE if best() == min(tried) else max(tried) + COARSE)
    for distance in (2, 1, 2):
        center = None
        while center != best():
            center = best()
            attempt(center - distance, center + distance)
    while any(map(is_stable, tried)):
        low = max(filter(is_stable, tried))
        high = min((power for power in tried if power > low), default=low)
        if high - low < 2 or len(tried) == MOST:
            break
        attempt((low + high) // 2)
