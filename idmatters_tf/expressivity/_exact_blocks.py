"""Exact evaluation of the residual blocks of a memorizer on one point.

Thousands of units are computed at once in floating point. A bound on rounding errors excludes the units that certainly
do not fire. The few others are computed as integers times a power of two.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from idmatters_tf.expressivity._dyadic import Dyadic

Floats = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
# Bound for underflow in sums of products of numbers of at most 1.
UNDERFLOW = 1e-300


def rounding(terms: int) -> float:
    """Bound the relative error of a sum of `terms` products in any order, with a few roundings before and after.

    Four times the bound of Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.1.
    """
    return (2 * terms + 32) * EPS


class Units:
    """Affine functions <u, h> + s, in floating point with an error bound, and exactly.

    Attributes:
        columns: (k, units), each u scaled by a power of two so that its largest entry is between 1/2 and 1.
        scales: (units,), exponents of these powers.
        norms: (units,), norms of the columns.
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
        """Compute values of units at h * 2^scale, divided by 2^scale, and error bounds. Overflow gives NaN.

        Args:
            h: (k,), rounded, with entries of at most 1.
            scale: exponent of the power of two.
            units: the units.
        """
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            shifted = np.ldexp(self._thresholds[units], -scale)
            size = np.linalg.norm(h) * self.norms[units] + np.abs(shifted)
            return h @ self.columns[:, units] + shifted, rounding(len(h)) * size + UNDERFLOW

    def column(self, units: NDArray[np.integer] | int) -> Dyadic:
        """Return u of some units, exact and unscaled: (k, units), or (k,) for one unit."""
        return Dyadic.exactly(self._exact[0][:, units])

    def values(self, h: Dyadic, units: NDArray[np.integer]) -> Dyadic:
        """Compute <u, h> + s of some units exactly: (units,)."""
        return h @ self.column(units) + Dyadic.exactly(self._exact[1][units])


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Consecutive blocks of which only the last one moves a point.

    Attributes:
        units: all units of these blocks.
        h: input of the first of these blocks, (k,).
        before, errors: results of `Units.before` at h.
        scale: scale of `before`.
        behind: output of the last of these blocks.
        fires: units that fire, all in the last of these blocks, (f,).
    """

    units: slice
    h: Dyadic
    before: Floats
    errors: Floats
    scale: int
    behind: Dyadic
    fires: NDArray[np.integer]


class ExactBlocks:
    """Blocks h <- h + V relu(U h + s) in exact arithmetic.

    Args:
        U: (blocks, k, width), finite.
        s: (blocks, width), finite.
        V: (blocks, width, k), finite.

    Attributes:
        units: `Units` of all blocks.
        V: (blocks * width, k), rows of all blocks.
    """

    def __init__(self, U: Floats, s: Floats, V: Floats):
        self.blocks, dim, self.width = U.shape
        self.units = Units(np.ascontiguousarray(U.transpose(1, 0, 2)).reshape(dim, -1), s.ravel())
        self.V = V.reshape(-1, dim)

    def stretches(self, h: Dyadic) -> Iterator[Stretch]:
        """Yield the stretches of blocks for a point."""
        start, end = 0, self.blocks * self.width
        while start < end:
            rounded, scale = h.floats()
            before, errors = self.units.before(rounded, scale, slice(start, None))
            fires, stop = self._first_firing(h, start, ~(before + errors <= 0))
            behind = h + self.units.values(h, fires) @ Dyadic.exactly(self.V[fires]) if len(fires) else h
            yield Stretch(slice(start, stop), h, before[: stop - start], errors[: stop - start], scale, behind, fires)
            start, h = stop, behind

    def outputs(self, h: Dyadic) -> Dyadic:
        """Return h after the last block."""
        for stretch in self.stretches(h):
            h = stretch.behind
        return h

    def _first_firing(self, h: Dyadic, start: int, possible: NDArray[np.bool_]) -> tuple[NDArray[np.integer], int]:
        """Return the units that fire in the first block with firing units, and the end of this block."""
        candidates = start + np.flatnonzero(possible)
        while len(candidates):
            stop = (int(candidates[0]) // self.width + 1) * self.width
            here = candidates[candidates < stop]
            fires = here[np.array([value > 0 for value in self.units.values(h, here).integers], bool)]
            if len(fires):
                return fires, stop
            candidates = candidates[len(here) :]
        return candidates, self.blocks * self.width
