"""The residual blocks of a memoriser on one point, without any rounding.

In floats a point passes thousands of units at once; the bound on their rounding tells which of them are certain not to
fire. The few others are computed as integers times a power of two.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from idmatters_tf.expressivity._dyadic import Dyadic

Floats = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
# For what underflows in sums of products of numbers of at most 1.
UNDERFLOW = 1e-300


def rounding(terms: int) -> float:
    """Bound the relative error of a sum of so many products in any order, with some roundings before and behind.

    Four times the bound of Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.1.
    """
    return (2 * terms + 32) * EPS


class Units:
    """Affine functions <u, h> + s: in floats with a bound on the error, and exactly.

    Attributes:
        columns: (k, units), each u scaled by a power of two so that its largest entry lies between 1/2 and 1.
        scales: (units,), the exponents of these powers.
        norms: (units,), of the columns.
        constant: (units,), True where u is 0.
    """

    def __init__(self, columns: Floats, thresholds: Floats):
        self._exact = columns, thresholds
        self.scales = -np.frexp(np.abs(columns).max(axis=0))[1]
        with np.errstate(over="ignore"):
            self.columns = np.ldexp(columns, self.scales)
            self._thresholds = np.ldexp(thresholds, self.scales)
        self.norms = np.linalg.norm(self.columns, axis=0)
        self.constant: NDArray[np.bool_] = np.asarray(~columns.any(axis=0))

    def before(self, h: Floats, scale: int, units: slice) -> tuple[Floats, Floats]:
        """Compute some units' values at h * 2^scale, over 2^scale, and bounds on their errors; NaN where it overflows.

        Args:
            h: (k,), of at most 1, rounded.
            scale: power of two.
            units: the units.
        """
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            shifted = np.ldexp(self._thresholds[units], -scale)
            size = np.linalg.norm(h) * self.norms[units] + np.abs(shifted)
            return h @ self.columns[:, units] + shifted, rounding(len(h)) * size + UNDERFLOW

    def column(self, units: NDArray[np.integer] | int) -> Dyadic:
        """Return u of some units, exactly and not scaled: (k, units), or (k,) of one."""
        return Dyadic.exactly(self._exact[0][:, units])

    def values(self, h: Dyadic, units: NDArray[np.integer]) -> Dyadic:
        """Compute <u, h> + s of some units exactly: (units,)."""
        return h @ self.column(units) + Dyadic.exactly(self._exact[1][units])


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Blocks that a point passes unmoved, and the one in which it is moved.

    Attributes:
        units: all units of these blocks.
        h: the point on its way into them, (k,).
        before, errors: of `Units.before` at h.
        scale: of `before`.
        behind: the point on its way out of them.
        fires: the units that fire, all in the last of these blocks, (f,).
    """

    units: slice
    h: Dyadic
    before: Floats
    errors: Floats
    scale: int
    behind: Dyadic
    fires: NDArray[np.integer]


class ExactBlocks:
    """The blocks h <- h + V relu(U h + s).

    Args:
        U, s, V: (blocks, k, width), (blocks, width), (blocks, width, k), finite.

    Attributes:
        units: `Units` of all blocks.
        V: (blocks * width, k), their rows.
    """

    def __init__(self, U: Floats, s: Floats, V: Floats):
        self.blocks, dim, self.width = U.shape
        self.units = Units(np.ascontiguousarray(U.transpose(1, 0, 2)).reshape(dim, -1), s.ravel())
        self.V = V.reshape(-1, dim)

    def stretches(self, h: Dyadic) -> Iterator[Stretch]:
        """Yield the stretches of a point's way through the blocks."""
        start, end = 0, self.blocks * self.width
        while start < end:
            rounded, scale = h.floats()
            before, errors = self.units.before(rounded, scale, slice(start, None))
            fires, stop = self._first_firing(h, start, ~(before + errors <= 0))
            behind = h + self.units.values(h, fires) @ Dyadic.exactly(self.V[fires]) if len(fires) else h
            yield Stretch(slice(start, stop), h, before[: stop - start], errors[: stop - start], scale, behind, fires)
            start, h = stop, behind

    def outputs(self, h: Dyadic) -> Dyadic:
        """Return h behind the last block."""
        for stretch in self.stretches(h):
            h = stretch.behind
        return h

    def _first_firing(self, h: Dyadic, start: int, possible: NDArray[np.bool_]) -> tuple[NDArray[np.integer], int]:
        """Return the units that fire in the first block in which any does, and where this block ends."""
        candidates = start + np.flatnonzero(possible)
        while len(candidates):
            stop = (int(candidates[0]) // self.width + 1) * self.width
            here = candidates[candidates < stop]
            fires = here[np.array([value > 0 for value in self.units.values(h, here).integers], bool)]
            if len(fires):
                return fires, stop
            candidates = candidates[len(here) :]
        return candidates, self.blocks * self.width
