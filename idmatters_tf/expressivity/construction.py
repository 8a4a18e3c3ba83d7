"""Theorem 3.2 made executable, in NumPy float64: every weight of a residual network that maps n points to their labels.

The network is h_0 = A_0 x (+ b), then h <- h + V_j relu(U_j h + s_j) for j = 1, ..., ceil(n/k), and at last
V relu(U h + s) without skip. Each block moves k points from where A_0 put them to the surrogate label of their class,
and leaves all others where they are. Hardt & Ma's proof gives every unit the same threshold, which asks for nearly
equal norms and a width in the hundreds. The order of norms does without: if point i has the largest norm of those not
yet moved, then by Cauchy-Schwarz <z_i, z_i> > <z_i, z> for each other one of them, whatever the width, and so each unit
gets a threshold of its own between the two.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from idmatters_tf.expressivity._ridge import directions_away
from idmatters_tf.expressivity._samples import Floats, Integers, chunks
from idmatters_tf.expressivity._surrogates import directions, last_block, surrogate_labels

Order: TypeAlias = Literal["norm", "ridge", "paper"]

# Rows and columns of the tiles in which inner products are taken: a tile of products stays in the cache.
PANEL, TILE = 256, 4096
# Relative margins below this are rounding errors.
SMALLEST_MARGIN = 16 * np.finfo(float).eps
# A relative margin a thousand times float32's rounding error.
CLOSE = 1e-3
# How far a direction leans: the point's own direction holds off the points that are no neighbours.
TILTS = (0.03, 0.3, 3.0)
# Below this share of the largest norm, surrogate labels of half the smallest norm drown in rounding errors.
SMALLEST_NORM = 1e-6


@dataclasses.dataclass(frozen=True)
class Weights:
    """Kernels for row vectors, float64: x @ projection + bias, and for each block relu(h @ U + s) @ V.

    Attributes:
        projection, bias: (d, k) and (k,); the bias is None where none is needed.
        U, s, V: (blocks, k, k), (blocks, k), (blocks, k, k); units without a point are zero.
        last_U, last_s, last_V: (k, r), (r,), (r, r).
        order: (n,), the row of x that each unit moves, in the order of application.
        margins: (n,), for each unit (<u, z_i> - the largest <u, z> that must not fire it) / (||u|| ||z_i||).
    """

    projection: Floats
    bias: Floats | None
    U: Floats
    s: Floats
    V: Floats
    last_U: Floats
    last_s: Floats
    last_V: Floats
    order: Integers
    margins: Floats

    @property
    def parameters(self) -> int:
        """Number of entries of all kernels and biases."""
        arrays = (self.projection, self.bias, self.U, self.s, self.V, self.last_U, self.last_s, self.last_V)
        return sum(array.size for array in arrays if array is not None)


def construct(
    x: NDArray[Any],
    labels: Integers,
    classes: int,
    width: int,
    order: Order,
    seed: int,
    progress: Callable[[int, int], object] | None = None,
) -> Weights:
    """The weights of a network of the given width that maps each row to the one-hot vector of its label.

    Source: Hardt & Ma, *Identity Matters in Deep Learning*, section 3 and appendix B. A_0 has the factor 1/sqrt(k) that
    all versions leave out, and is divided by the root mean square of the rows' norms.

    Args:
        x: (n, d) real, finite, rows distinct.
        labels: (n,) in [0, classes).
        classes, width: r and k.
        order: "norm", "ridge" or "paper"; see `memorize`.
        seed: of A_0 and the surrogate labels.
        progress: called with (points done, n) now and then.

    Returns:
        `Weights`.

    Raises:
        TooClose: where float64 cannot tell two rows apart.
        ValueError: where for the paper's order no common threshold exists.
    """
    rng = np.random.default_rng(seed)
    projection, bias, Z = project(x, width, rng)
    norms = np.linalg.norm(Z, axis=1)
    # A stable sort: points of equal norm stay in the order of the rows.
    rows = np.arange(len(Z)) if order == "paper" else np.argsort(-norms, kind="stable")
    Z, norms = Z[rows], norms[rows]
    if order == "paper":
        surrogates = directions(rng, classes, width)
        units, thresholds, margins = _common_threshold(Z, surrogates, progress)
        last = _paper_last_block(surrogates)
    else:
        surrogates = surrogate_labels(classes, width, norms[-1] / 2, rng)
        units, highest, margins = _unit_by_unit(Z, norms, surrogates, order, progress)
        if margins.min() < SMALLEST_MARGIN:
            raise _too_close(rows, Z, norms, units, margins)
        thresholds = (np.einsum("nk,nk->n", units, Z) + highest) / 2
        last = last_block(surrogates)
    U, s, V = blocks_of(units, thresholds, Z, surrogates[labels[rows]], width)
    return Weights(projection, bias, U, s, V, *last, rows, margins)


def project(x: NDArray[Any], width: int, rng: np.random.Generator) -> tuple[Floats, Floats | None, Floats]:
    """A_0 and the projected points.

    Returns:
        (projection (d, k), bias (k,) or None, points (n, k)). There is a bias, the image of a constant coordinate
        appended to x, where a point would fall on zero or nearly so.
    """
    size = 0.0
    for rows in chunks(x):
        size += np.sum(np.square(x[rows], dtype=np.float64))
    size = np.sqrt(size / len(x)) or 1.0
    projection = rng.standard_normal((x.shape[1], width)) / (np.sqrt(width) * size)
    Z = np.empty((len(x), width))
    for rows in chunks(x):
        np.matmul(x[rows].astype(np.float64, copy=False), projection, out=Z[rows])
    norms = np.linalg.norm(Z, axis=1)
    if norms.min() > SMALLEST_NORM * norms.max():
        return projection, None, Z
    # Longer than every point, so that none comes near zero.
    bias = 2 * (norms.max() or 1.0) * directions(rng, 1, width)[0]
    Z += bias
    return projection, bias, Z


def highest_products(units: NDArray[Any], Z: NDArray[Any], own: Integers) -> NDArray[Any]:
    """For each unit the largest <u, z> over the points after its own.

    Args:
        units: (p, k), those of a few points, in order.
        Z: (n, k), all points in order; of the dtype in which products are taken.
        own: (p,), ascending, the numbers of the units' own points.

    Returns:
        (p,), -inf for the last point.
    """
    highest = np.full(len(units), -np.inf, Z.dtype)
    buffer = np.empty((len(units), TILE), Z.dtype)
    for start in range(own[0] + 1, len(Z), TILE):
        tile = Z[start : start + TILE]
        products = np.matmul(units, tile.T, out=buffer[:, : len(tile)])
        if start <= own[-1]:
            products[np.arange(start, start + len(tile)) <= own[:, None]] = -np.inf
        np.maximum(highest, products.max(axis=1), out=highest)
    return highest


def _unit_by_unit(Z, norms, surrogates, order, progress):
    """Directions (n, k), the largest product that must not fire each unit (n,), and relative margins (n,)."""
    n = len(Z)
    points = _Points(Z, norms, surrogates)
    units, highest = Z.copy(), np.empty(n)
    for first in range(0, n, PANEL):
        panel = slice(first, min(first + PANEL, n))
        highest[panel] = points.highest(Z[panel], panel)
        if order == "ridge":
            _improve(units, highest, panel, points)
        if progress is not None:
            progress(panel.stop, n)
    return units, highest, points.margins(units, highest, slice(0, n))


class _Points:
    """The points in the order in which they are moved, in both precisions, and the surrogate labels."""

    def __init__(self, Z: Floats, norms: Floats, surrogates: Floats) -> None:
        self.Z, self.norms, self.surrogates = Z, norms, surrogates
        self._single = Z.astype(np.float32)

    def highest(self, units, panel):
        """The largest product that must not fire each of a panel's units.

        Found in float32, which is twice as fast and good enough to place a threshold in the middle of a margin; where
        the margin turns out small, in float64 again.
        """
        own = np.arange(panel.start, panel.stop)
        beside = (units @ self.surrogates.T).max(axis=1)
        found = np.maximum(highest_products(units.astype(np.float32), self._single, own), beside)
        close = np.flatnonzero(self.margins(units, found, panel) < CLOSE)
        if len(close):
            found[close] = np.maximum(highest_products(units[close], self.Z, own[close]), beside[close])
        return found

    def margins(self, units, highest, panel):
        """(<u, z> - highest) / (||u|| ||z||) of a panel."""
        own = np.einsum("nk,nk->n", units, self.Z[panel])
        return (own - highest) / (np.linalg.norm(units, axis=1) * self.norms[panel])


def _improve(units, highest, panel, points):
    """Takes those directions, leaning away from the neighbours, which enlarge a unit's margin."""
    outward = points.Z[panel] / points.norms[panel, None]
    for away, tilt in itertools.product(directions_away(points.Z, panel, points.surrogates), TILTS):
        candidates = outward + tilt * away
        reached = points.highest(candidates, panel)
        better = points.margins(candidates, reached, panel) > points.margins(units[panel], highest[panel], panel)
        units[panel][better] = candidates[better]
        highest[panel][better] = reached[better]


def blocks_of(
    units: Floats, thresholds: Floats, Z: Floats, targets: Floats, width: int
) -> tuple[Floats, Floats, Floats]:
    """Stacks the units into blocks and solves for V, so that each block moves its points to their targets.

    Inside a block an earlier point may fire a later point's unit, never the reverse: the activations form a triangular
    matrix with a positive diagonal, and V follows by back substitution, for all blocks at once.

    Returns:
        U (blocks, k, k), s (blocks, k), V (blocks, k, k), for row vectors.
    """
    blocks = -(-len(Z) // width)

    def stacked(array):
        padding = blocks * width - len(array)
        return np.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1)).reshape(blocks, width, *array.shape[1:])

    U = np.ascontiguousarray(stacked(units).transpose(0, 2, 1))
    s = -stacked(thresholds)
    points, moves = stacked(Z), stacked(targets - Z)
    activations = points @ U
    activations += s[:, None, :]
    # The diagonal of a unit without a point: any number but zero, its move is zero.
    diagonal = np.einsum("bpp->bp", activations)
    diagonal[diagonal == 0] = 1.0
    V = moves
    for p in reversed(range(width)):
        later = np.maximum(activations[:, p, None, p + 1 :], 0)
        V[:, p] = (moves[:, p] - (later @ V[:, p + 1 :])[:, 0]) / diagonal[:, p, None]
    return U, s, V


def _common_threshold(Z, surrogates, progress):
    """The paper's units: all with the one threshold midway between the smallest <z, z> and all other products."""
    n = len(Z)
    own = np.einsum("nk,nk->n", Z, Z)
    highest = np.empty(n)
    for first in range(0, n, PANEL):
        panel = slice(first, min(first + PANEL, n))
        highest[panel] = highest_products(Z[panel], Z, np.arange(panel.start, panel.stop))
        np.maximum(highest[panel], (Z[panel] @ surrogates.T).max(axis=1), out=highest[panel])
        if progress is not None:
            progress(panel.stop, n)
    if own.min() <= highest.max():
        raise ValueError(
            f"order='paper' is impossible here: its one common threshold must lie below the smallest ||z||^2 = "
            f"{own.min():.3g} and above every inner product with another point or surrogate label, whose largest "
            f"is {highest.max():.3g}. `check_assumption` says more. Use order='norm', which works at any width, or a "
            f"larger width than {Z.shape[1]}."
        )
    thresholds = np.full(n, (own.min() + highest.max()) / 2)
    return Z, thresholds, (own.min() - highest.max()) / own


def _paper_last_block(surrogates):
    products = surrogates @ surrogates.T
    np.fill_diagonal(products, -np.inf)
    highest = max(0.0, products.max()) if len(products) > 1 else 0.0
    if highest >= 1:
        raise ValueError(
            "order='paper' is impossible here: two random surrogate labels coincide. Use order='norm' or a larger "
            "width."
        )
    classes = len(surrogates)
    return surrogates.T.copy(), np.full(classes, -(1 + highest) / 2), 2 / (1 - highest) * np.eye(classes)


class TooClose(ValueError):
    """Two points that float64 cannot tell apart after the projection."""

    def __init__(self, first: int, second: int, distance: float):
        super().__init__(first, second, distance)
        self.rows, self.distance = (first, second), distance

    def sentence(self, names: Sequence[int] | Integers) -> str:
        """What to tell the user; names: the numbers of the rows in the user's own array."""
        first, second = (names[row] for row in self.rows)
        return (
            f"Argument `x` has rows that float64 cannot tell apart after the projection: {first} and {second} are "
            f"{self.distance:.1e} of their norm apart, and a unit's margin is the square of that. Use order='ridge', "
            f"subtract the mean of x, or remove one of the rows."
        )


def _too_close(rows, Z, norms, units, margins):
    worst = min(int(np.argmin(margins)), len(Z) - 2)
    other = worst + 1 + int(np.argmax(Z[worst + 1 :] @ units[worst]))
    return TooClose(int(rows[worst]), int(rows[other]), np.linalg.norm(Z[worst] - Z[other]) / norms[worst])
