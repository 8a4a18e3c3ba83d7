"""Learning rates as functions of depth: estimates from short trainings, laws, and predictions with intervals."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.optimize
import scipy.stats
from numpy.typing import ArrayLike, NDArray

from idmatters_tf.depth.power_law import Prediction

# Level of intervals; largest factor between the best rate and those through which the parabola is drawn; error of log
# rate of all laws, chosen on 12 cases of docs/reference/results/depth.md, of which the intervals then contained 92 %.
LEVEL, NEIGHBORHOOD, MISFIT = 0.9, 2.0, 0.3

Law = Callable[[ArrayLike], NDArray[np.float64]]


class Estimate(NamedTuple):
    """Logarithm of a rate with its standard error and its degrees of freedom."""

    log: float
    error: float
    freedom: float = np.inf

    def interval(self) -> Prediction:
        """Return the rate with the ends of its 90 % confidence interval."""
        return _interval(self.log, self.error, self.freedom)


def best_rate(rates: NDArray[np.float64], losses: NDArray[np.float64]) -> Estimate:
    """Return the rate of the lowest loss: the vertex of a parabola in log rate, with an offset for each seed.

    Args:
        rates: learning rates in ascending order, (n,).
        losses: losses after training, infinite for unstable trainings, (n, seeds).
    """
    usable, seeds = np.isfinite(losses).all(axis=1), losses.shape[1]
    if not usable.any():
        return Estimate(np.nan, np.nan)
    logs, values = np.log(rates[usable]), losses[usable]
    best = logs[values.mean(axis=1).argmin()]
    near = np.abs(logs - best) <= np.log(NEIGHBORHOOD) + 1e-9
    x = logs[near] - best
    # Without a parabola: half of the range of rates whose losses do not differ from the lowest one by more than noise.
    means = values.mean(axis=1)
    residuals = values - means[:, None] - values.mean(axis=0) + means.mean()
    noise = np.sum(residuals**2) / max(1, (len(values) - 1) * (seeds - 1))
    alike = logs[means <= means.min() + 2 * np.sqrt(2 * noise / seeds)]
    coarse = Estimate(float(best), float(max(np.ptp(alike) / 2, np.diff(np.log(rates)).min(initial=np.inf))))
    if len(x) < 3:
        return coarse
    offsets = np.kron(np.ones((len(x), 1)), np.eye(seeds))
    design = np.column_stack([offsets, np.repeat(x, seeds), np.repeat(x**2, seeds)])
    target = values[near].ravel()
    freedom = len(target) - design.shape[1]
    solution = np.linalg.lstsq(design, target, rcond=None)[0]
    slope, bend = solution[-2:]
    if freedom < 1 or not x.min() <= -slope / (2 * bend) <= x.max():
        return coarse
    variance = np.sum((target - design @ solution) ** 2) / freedom
    covariance = variance * np.linalg.inv(design.T @ design)[-2:, -2:]
    # The bend must be more than noise.
    if bend <= 2 * np.sqrt(covariance[1, 1]):
        return coarse
    direction = np.array([-1 / (2 * bend), slope / (2 * bend**2)])
    return Estimate(float(best - slope / (2 * bend)), float(np.sqrt(direction @ covariance @ direction)), freedom)


def largest_stable_rate(rates: NDArray[np.float64], stable: NDArray[np.bool_]) -> Estimate:
    """Return the largest rate at which at least half of the trainings are stable, between it and the next rate.

    Args:
        rates: learning rates in ascending order, (n,).
        stable: stability of each training, (n, seeds).
    """
    logs = np.log(rates)

    def edge(column: NDArray[np.bool_]) -> tuple[float, float]:
        """Return the middle of the interval that contains the end, and its width."""
        index = int(np.flatnonzero(column)[-1])
        high = logs[min(index + 1, len(logs) - 1)]
        return (logs[index] + high) / 2, high - logs[index]

    half = stable.mean(axis=1) >= 0.5
    if not half.any():
        return Estimate(np.nan, np.nan)
    middle, width = edge(half)
    edges = [edge(column)[0] for column in stable.T if column.any()]
    spread = np.var(edges, ddof=1) / len(edges) if len(edges) > 1 else 0.0
    return Estimate(float(middle), float(np.sqrt(spread + width**2 / 12)))


def _constant(depths: NDArray[np.float64], logs: NDArray[np.float64]) -> Law:
    return lambda depth: np.full(np.shape(depth), logs.mean())


def _power(depths: NDArray[np.float64], logs: NDArray[np.float64]) -> Law:
    exponent, offset = np.polyfit(np.log(depths), logs, 1)
    return lambda depth: offset + exponent * np.log(depth)


def _affine(depths: NDArray[np.float64], logs: NDArray[np.float64]) -> Law:
    """Fit 1 / rate = a + b depth with a, b >= 0, by relative errors of the rate."""
    rates = np.exp(logs)
    (a, b), _ = scipy.optimize.nnls(np.column_stack([rates, rates * depths]), np.ones(len(rates)))
    return lambda depth: -np.log(a + b * np.asarray(depth))


# Fits by name, with their numbers of parameters.
_LAWS: Mapping[str, tuple[Callable[..., Law], int]] = {
    "constant": (_constant, 1),
    "1 / rate affine in depth": (_affine, 2),
    "power of depth": (_power, 2),
}


@dataclasses.dataclass(frozen=True)
class RateLaw:
    """Law of a rate in depth, chosen by its leave-one-depth-out error among a constant, a power and an affine 1 / rate.

    Attributes:
        depths, estimates: measured rates.
        errors: root mean square of the leave-one-depth-out errors of log rate, by law.
    """

    depths: tuple[int, ...]
    estimates: tuple[Estimate, ...]
    errors: dict[str, float]

    @property
    def name(self) -> str:
        """Name of the law with the smallest error; "none" for fewer than two depths with a rate."""
        return min(self.errors, key=lambda name: self.errors[name]) if self.errors else "none"

    def predict(self, depth: float) -> Prediction:
        """Return the rate at a depth, with a 90 % prediction interval that contains the uncertainty of the law.

        The variance of log rate is the sum of that of the measurements, of the squared leave-one-depth-out error and an
        error that all laws have, 0.3, both of which grow with the logarithmic distance from the measured depths, and of
        the spread of the laws, weighted by the inverse squares of their errors. Their normal distribution is an
        assumption: `docs/reference/results/depth.md` has the measured share of rates within the intervals.
        """
        if not self.errors:
            return Prediction(np.nan, np.nan, np.nan)
        x, y = np.array(self.depths, np.float64), np.array([estimate.log for estimate in self.estimates])
        noise = float(np.mean([estimate.error**2 for estimate in self.estimates]))
        predicted = {name: float(_LAWS[name][0](x, y)(depth)) for name in self.errors}
        weights = np.array([1 / (error**2 + noise + 1e-6) for error in self.errors.values()])
        log = predicted[self.name]
        spread = float(np.average((np.array(list(predicted.values())) - log) ** 2, weights=weights))
        distance = max(0.0, np.log(depth / x.max()), np.log(x.min() / depth)) / np.log(x.max() / x.min())
        law = (self.errors[self.name] ** 2 + MISFIT**2) * (1 + distance) ** 2
        return _interval(log, float(np.sqrt(noise + law + spread)), np.inf)


def fit_rate_law(depths: Iterable[int], estimates: Sequence[Estimate]) -> RateLaw:
    """Fit the laws to one estimate for each depth; depths without one are left out.

    Example:

    >>> law = fit_rate_law([2, 4, 8], [Estimate(float(np.log(0.8 / depth)), 0.01) for depth in (2, 4, 8)])
    >>> law.name, round(law.predict(16).value, 3)
    ('1 / rate affine in depth', 0.05)
    """
    pairs = [(depth, e) for depth, e in zip(depths, estimates, strict=True) if np.isfinite(e.log)]
    x, y = np.array([depth for depth, _ in pairs], np.float64), np.array([estimate.log for _, estimate in pairs])
    errors = {}
    for name, (fit, parameters) in _LAWS.items():
        if len(x) > max(parameters, 1):
            rest = list(itertools.combinations(range(len(x)), len(x) - 1))[::-1]
            errors[name] = float(
                np.sqrt(np.mean([(fit(x[list(r)], y[list(r)])(x[i]) - y[i]) ** 2 for i, r in enumerate(rest)]))
            )
    return RateLaw(tuple(int(depth) for depth, _ in pairs), tuple(estimate for _, estimate in pairs), errors)


def _interval(log: float, error: float, freedom: float) -> Prediction:
    half = float(scipy.stats.t.ppf((1 + LEVEL) / 2, freedom)) * error
    return Prediction(*(float(np.exp(value)) for value in (log, log - half, log + half)))
