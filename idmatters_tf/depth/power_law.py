"""Power laws in depth with confidence intervals, and verdicts computed from them."""

import dataclasses
from typing import Literal, NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike, NDArray

# Level of intervals; largest exponent that counts as independent of depth, a factor of 1.41 from depth 2 to depth 64;
# largest typical factor between a power law and the means of the depths.
LEVEL, SMALL_EXPONENT, MISFIT = 0.95, 0.1, 1.25

State = Literal["constant", "grows", "falls", "undetermined", "no power law", "zero", "undefined"]


class Prediction(NamedTuple):
    """Value at a depth, and the ends of the 95 % prediction interval for one more seed."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class PowerLaw:
    """Least-squares fit of log |value| = log |scale| + exponent * log depth, with each seed as a point.

    Attributes:
        state: "constant" if the interval of the exponent is within -0.1 and 0.1; "grows" or "falls" in magnitude if it
            excludes 0; "undetermined" if it does neither; "no power law" if the means of the depths deviate from the
            fit by a typical factor above 1.25, and by more than the scatter of the seeds explains (F test of the lack
            of fit at 5 %); "zero" if all values are finite and none exceeds its error; "undefined" for the `reason`.
            The fit is NaN for "no power law" and "undefined".
        exponent, low, high: exponent with its 95 % confidence interval, by Student's t distribution.
        scale: value of the fit at depth 1.
        deviation: standard deviation of the residuals of log |value|.
        points, center, spread: number of points, mean of log depth, and sum of squares about it.
        reason: predicates that make the law undefined, with their depths; empty for other states.
    """

    state: State
    exponent: float = np.nan
    low: float = np.nan
    high: float = np.nan
    scale: float = np.nan
    deviation: float = np.nan
    points: int = 3
    center: float = 0.0
    spread: float = 1.0
    reason: str = ""

    def predict(self, depth: float) -> Prediction:
        """Return the value at a depth with its prediction interval; NaN for "no power law" and "undefined"."""
        value = self.scale * depth**self.exponent
        variance = 1 + 1 / self.points + (np.log(depth) - self.center) ** 2 / self.spread
        factor = np.exp(_quantile(self.points - 2) * self.deviation * np.sqrt(variance))
        return Prediction(float(value), *map(float, sorted((value / factor, value * factor))))

    def verdict(self) -> str:
        """Return the predicate of a sentence about the dependence on depth."""
        # Without negative zeros.
        exponent, low, high = (f"{round(number, 2) + 0.0:.2f}" for number in (self.exponent, self.low, self.high))
        interval = f"95 % interval {low} to {high}"
        return {
            "constant": f"does not depend on depth (exponent {exponent}, {interval})",
            "grows": f"grows like depth^{exponent} ({interval})",
            "falls": f"falls like depth^{exponent} ({interval})",
            "undetermined": f"may or may not depend on depth (exponent {exponent}, {interval})",
            "no power law": "follows no power law",
            "zero": "cannot be distinguished from zero at any depth",
            "undefined": f"has no power law: it is {self.reason}",
        }[self.state]


def fit_power_law(depths: ArrayLike, values: ArrayLike, errors: ArrayLike = 0.0) -> PowerLaw:
    """Fit a power law to one value for each depth and seed.

    The interval covers the scatter of the seeds, not the bias of a law that holds approximately.

    Args:
        depths: depth of each point, with at least two different ones.
        values: value of each point.
        errors: error of each value. A value that does not exceed its error is not resolved.

    Example:

    >>> law = fit_power_law([2, 4, 8, 16], [2.0, 4.1, 8.0, 15.9])
    >>> law.verdict(), round(law.predict(32).value, 1)
    ('grows like depth^0.99 (95 % interval 0.95 to 1.04)', 31.8)
    """
    x, y = np.asarray(depths, np.float64), np.asarray(values, np.float64)
    resolved = np.abs(y) > errors
    if np.isfinite(y).all() and not resolved.any():
        return PowerLaw("zero", 0.0, 0.0, 0.0, 0.0, 0.0)
    sign = 1.0 if np.sum(y > 0) >= np.sum(y < 0) else -1.0
    cases = {
        "not defined": np.isnan(y),
        "infinite or not resolved": np.isinf(y),
        "below its error": np.isfinite(y) & ~resolved,
        "of another sign": np.isfinite(y) & resolved & (sign * y < 0),
    }
    reasons = [
        f"{case} at depth {', '.join(f'{d:g}' for d in np.unique(x[bad]))}" for case, bad in cases.items() if any(bad)
    ]
    if reasons:
        return PowerLaw("undefined", reason=" and ".join(reasons))
    log_x, log_y = np.log(x), np.log(np.abs(y))
    center, freedom = float(log_x.mean()), len(x) - 2
    spread = float(np.sum((log_x - center) ** 2))
    exponent = float(np.sum((log_x - center) * log_y) / spread)
    offset = float(log_y.mean()) - exponent * center
    residuals = log_y - offset - exponent * log_x
    deviation = float(np.sqrt(np.sum(residuals**2) / freedom)) if freedom else np.inf
    half = float(_quantile(freedom) * deviation / np.sqrt(spread))
    if _misfit(x, residuals) > MISFIT:
        return PowerLaw("no power law")
    state: State = "undetermined"
    if abs(exponent) + half <= SMALL_EXPONENT:
        state = "constant"
    elif abs(exponent) > half:
        state = "grows" if exponent > 0 else "falls"
    fit = exponent, exponent - half, exponent + half, sign * float(np.exp(offset))
    return PowerLaw(state, *fit, deviation, len(x), center, spread)


def _misfit(depths: NDArray[np.float64], residuals: NDArray[np.float64]) -> float:
    """Return the typical factor between fit and means of the depths, or 1 if the scatter of the seeds explains it."""
    different, inverse, counts = np.unique(depths, return_inverse=True, return_counts=True)
    means = np.bincount(inverse, residuals) / counts
    lack, pure = float(np.sum(counts * means**2)), float(np.sum((residuals - means[inverse]) ** 2))
    free, inside = len(different) - 2, len(depths) - len(different)
    if free and inside and pure and scipy.stats.f.sf(lack / free / (pure / inside), free, inside) > 1 - LEVEL:
        return 1.0
    return float(np.exp(np.sqrt(lack / len(depths))))


def _quantile(freedom: int) -> float:
    """Return the two-sided quantile of Student's t distribution; infinite without degrees of freedom."""
    return float(scipy.stats.t.ppf((1 + LEVEL) / 2, freedom)) if freedom else np.inf
