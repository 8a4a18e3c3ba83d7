"""Power laws in depth with confidence intervals, and verdicts computed from them."""

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike, NDArray

# Level of confidence and prediction intervals.
LEVEL = 0.95
# Largest exponent that counts as independent of depth: a factor of 1.41 from depth 2 to depth 64.
SMALL_EXPONENT = 0.1
# Largest typical factor between a power law and the means of the depths.
MISFIT = 1.25

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
            of fit at 5 %); "zero" if no value exceeds its error; "undefined" if some values are not finite, do not
            exceed their errors, or differ in sign. The fit is NaN in the last two cases.
        exponent, low, high: exponent with its 95 % confidence interval, by Student's t distribution.
        scale: value of the fit at depth 1.
        deviation: standard deviation of the residuals of log |value|.
        misfit: typical factor between the fit and the geometric means of the depths.
        points, center, spread: number of points, mean of log depth, and sum of squares about it.
        excluded: depths of the values that make the law undefined.
    """

    state: State
    exponent: float = np.nan
    low: float = np.nan
    high: float = np.nan
    scale: float = np.nan
    deviation: float = np.nan
    misfit: float = np.nan
    points: int = 0
    center: float = np.nan
    spread: float = np.nan
    excluded: tuple[int, ...] = ()

    @property
    def has_exponent(self) -> bool:
        """True if the values follow a power law, possibly with an uncertain exponent."""
        return self.state in ("constant", "grows", "falls", "undetermined")

    def predict(self, depth: float) -> Prediction:
        """Return the value at a depth with its prediction interval; NaN for "no power law" and "undefined"."""
        if not self.has_exponent:
            return Prediction(*[0.0 if self.state == "zero" else np.nan] * 3)
        value = self.scale * depth**self.exponent
        distance = np.log(depth) - self.center
        error = self.deviation * np.sqrt(1 + 1 / self.points + distance**2 / self.spread)
        factor = np.exp(_quantile(self.points - 2) * error)
        low, high = sorted((value / factor, value * factor))
        return Prediction(float(value), float(low), float(high))

    def verdict(self) -> str:
        """Return the predicate of a sentence about the dependence on depth."""
        # Without negative zeros.
        exponent, low, high = (f"{round(number, 2) + 0.0:.2f}" for number in (self.exponent, self.low, self.high))
        interval = f"95 % interval {low} to {high}"
        depths = ", ".join(map(str, self.excluded))
        return {
            "constant": f"does not depend on depth (exponent {exponent}, {interval})",
            "grows": f"grows like depth^{exponent} ({interval})",
            "falls": f"falls like depth^{exponent} ({interval})",
            "undetermined": f"may or may not depend on depth (exponent {exponent}, {interval})",
            "no power law": f"follows no power law: depth^{exponent} is off by a typical factor of {self.misfit:.3g}",
            "zero": "is zero at all depths, to the accuracy of the measurement",
            "undefined": f"has no power law, not being finite, resolved and of one sign at depths {depths}",
        }[self.state]


def fit_power_law(depths: Sequence[int], values: ArrayLike, errors: ArrayLike = 0.0) -> PowerLaw:
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
        return PowerLaw("zero")
    sign = 1.0 if np.sum(y > 0) >= np.sum(y < 0) else -1.0
    bad = ~np.isfinite(y) | ~resolved | (sign * y <= 0)
    if bad.any():
        return PowerLaw("undefined", excluded=tuple(sorted({int(depth) for depth in x[bad]})))
    log_x, log_y = np.log(x), np.log(np.abs(y))
    center, freedom = float(log_x.mean()), len(x) - 2
    spread = float(np.sum((log_x - center) ** 2))
    exponent = float(np.sum((log_x - center) * log_y) / spread)
    offset = float(log_y.mean()) - exponent * center
    residuals = log_y - offset - exponent * log_x
    deviation = float(np.sqrt(np.sum(residuals**2) / freedom)) if freedom else np.inf
    half = _quantile(freedom) * deviation / np.sqrt(spread)
    misfit, is_noise = _lack_of_fit(x, residuals)
    if misfit > MISFIT and not is_noise:
        state: State = "no power law"
    elif abs(exponent) + half <= SMALL_EXPONENT:
        state = "constant"
    elif abs(exponent) > half:
        state = "grows" if exponent > 0 else "falls"
    else:
        state = "undetermined"
    interval = exponent - half, exponent + half
    scale = sign * float(np.exp(offset))
    return PowerLaw(state, exponent, *interval, scale, deviation, misfit, len(x), center, spread)


def _lack_of_fit(depths: NDArray[np.float64], residuals: NDArray[np.float64]) -> tuple[float, bool]:
    """Return the typical factor between fit and means of the depths, and True if the seeds' scatter explains it."""
    different, place, counts = np.unique(depths, return_inverse=True, return_counts=True)
    means = np.bincount(place, residuals) / counts
    lack, pure = float(np.sum(counts * means**2)), float(np.sum((residuals - means[place]) ** 2))
    free, inside = len(different) - 2, len(depths) - len(different)
    if not free or not inside or not pure:
        return float(np.exp(np.sqrt(lack / len(depths)))), not free
    probability = scipy.stats.f.sf(lack / free / (pure / inside), free, inside)
    return float(np.exp(np.sqrt(lack / len(depths)))), bool(probability > 1 - LEVEL)


def _quantile(freedom: int) -> float:
    """Return the quantile of Student's t distribution for two-sided intervals; infinite without degrees of freedom."""
    return float(scipy.stats.t.ppf((1 + LEVEL) / 2, freedom)) if freedom else np.inf
