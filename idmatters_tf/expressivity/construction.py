"""Construction of Theorem 3.2 in NumPy float64: the weights of a residual network that maps n points to their labels.

The network is h_0 = A_0 x (+ b), then h <- h + V_j relu(U_j h + s_j) for j = 1, ..., ceil(n/k), and finally
V relu(U h + s) without skip. Each block moves k points from their projections to the surrogate labels of their classes
and leaves all other points in place. Hardt & Ma's proof uses one threshold for all units, which requires nearly equal
norms and a width in the hundreds. Here the points are moved in descending order of their norms. If point i has the
largest norm of the remaining points, Cauchy-Schwarz gives <z_i, z_i> > <z_i, z> for all others at any width, and each
unit has its own threshold between the two.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from idmatters_tf.expressivity._ridge import directions_away
from idmatters_tf.expressivity._samples import Floats, Integers, chunks
from idmatters_tf.expressivity._surrogates import directions, last_block, surrogate_labels

Order: TypeAlias = Literal["norm", "ridge", "paper"]

# Rows and columns of the tiles of inner products, which fit into the cache.
PANEL, TILE = 256, 4096
# Relative margins below this are rounding errors.
SMALLEST_MARGIN = 16 * np.finfo(float).eps
# A relative margin a thousand times float32's rounding error.
CLOSE = 1e-3
# Weights of the direction away from the neighbors, relative to the point's own direction.
TILTS = (0.03, 0.3, 3.0)
# Below this fraction of the largest norm, surrogate labels of half the smallest norm vanish in rounding errors.
SMALLEST_NORM = 1e-6


@dataclasses.dataclass(frozen=True)
class Weights:
    """Kernels for row vectors, float64: x @ projection + bias, and for each block relu(h @ U + s) @ V.

    Attributes:
        projection, bias: (d, k), and (k,) or None.
        U, s, V: (blocks, k, k), (blocks, k), (blocks, k, k). Units without a point are zero.
        last_U, last_s, last_V: (k, r), (r,), (r, r).
        order: (n,), row of x that each unit moves, in order of application.
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
    """Compute the weights of a network of the given width that maps each row to the one-hot vector of its label.

    Source: Hardt & Ma, *Identity Matters in Deep Learning*, section 3 and appendix B. A_0 has the factor 1/sqrt(k),
    which all versions of the paper omit, and is divided by the root mean square norm of the rows.

    Args:
        x: (n, d) real, finite, distinct rows.
        labels: (n,) in [0, classes).
        classes: r.
        width: k.
        order: "norm", "ridge" or "paper", see `memorize`.
        seed: seed of A_0 and the surrogate labels.
        progress: callable that receives (points done, n).

    Returns:
        `Weights`.

    Raises:
        TooClose: if two rows cannot be separated in float64.
        ValueError: if no common threshold exists for order="paper".
    """
    rng = np.random.default_rng(seed)
    projection, bias, Z = project(x, width, rng)
    norms = np.linalg.norm(Z, axis=1)
    # A stable sort keeps points of equal norm in the order of the rows.
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
    U, s, V = stack_units(units, thresholds, Z, surrogates[labels[rows]], width)
    return Weights(projection, bias, U, s, V, *last, rows, margins)


def project(x: NDArray[Any], width: int, rng: np.random.Generator) -> tuple[Floats, Floats | None, Floats]:
    """Draw A_0 and project the points.

    Returns:
        (projection (d, k), bias (k,) or None, points (n, k)). The bias is the image of a constant coordinate appended
        to x. It is added if a point would be projected to zero or nearly zero.
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
    # A bias longer than every point keeps all of them away from zero.
    bias = 2 * (norms.max() or 1.0) * directions(rng, 1, width)[0]
    Z += bias
    return projection, bias, Z


def highest_products(units: NDArray[Any], Z: NDArray[Any], own: Integers) -> NDArray[Any]:
    """Return the largest <u, z> over the points after the unit's own point, for each unit.

    Args:
        units: (p, k), units of a few points, in order.
        Z: (n, k), all points in order, in the dtype of the products.
        own: (p,), indices of the units' own points, ascending.

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


def panels(count: int) -> Iterator[slice]:
    """Yield slices of PANEL points."""
    for first in range(0, count, PANEL):
        yield slice(first, min(first + PANEL, count))


def products_with_others(Z: Floats, surrogates: Floats, progress: Callable[[int, int], object] | None = None) -> Floats:
    """Return the largest product of each point with a later point or a surrogate label, (n,)."""
    highest = np.empty(len(Z))
    for panel in panels(len(Z)):
        later = highest_products(Z[panel], Z, np.arange(panel.start, panel.stop))
        np.maximum(later, (Z[panel] @ surrogates.T).max(axis=1), out=highest[panel])
        if progress is not None:
            progress(panel.stop, len(Z))
    return highest


def _unit_by_unit(Z, norms, surrogates, order, progress):
    """Return directions (n, k), the largest product that must not fire each unit (n,), and relative margins (n,)."""
    n = len(Z)
    points = _Points(Z, norms, surrogates)
    units, highest = Z.copy(), np.empty(n)
    for panel in panels(n):
        highest[panel] = points.highest(Z[panel], panel)
        if order == "ridge":
            _improve(units, highest, panel, points)
        if progress is not None:
            progress(panel.stop, n)
    return units, highest, points.margins(units, highest, slice(0, n))


class _Points:
    """Points in the order of their moves, in both precisions, and surrogate labels."""

    def __init__(self, Z: Floats, norms: Floats, surrogates: Floats) -> None:
        self.Z, self.norms, self.surrogates = Z, norms, surrogates
        self._single = Z.astype(np.float32)

    def highest(self, units, panel):
        """Return the largest product that must not fire a unit, for each unit of a panel.

        It is computed in float32, which is twice as fast and accurate enough for a threshold in the middle of a margin.
        Small margins are recomputed in float64.
        """
        own = np.arange(panel.start, panel.stop)
        beside = (units @ self.surrogates.T).max(axis=1)
        found = np.maximum(highest_products(units.astype(np.float32), self._single, own), beside)
        close = np.flatnonzero(self.margins(units, found, panel) < CLOSE)
        if len(close):
            found[close] = np.maximum(highest_products(units[close], self.Z, own[close]), beside[close])
        return found

    def margins(self, units, highest, panel):
        """Return (<u, z> - highest) / (||u|| ||z||) for a panel."""
        own = np.einsum("nk,nk->n", units, self.Z[panel])
        return (own - highest) / (np.linalg.norm(units, axis=1) * self.norms[panel])


def _improve(units, highest, panel, points):
    """Replace directions by those that lean away from the neighbors, where this enlarges the margin."""
    outward = points.Z[panel] / points.norms[panel, None]
    for away, tilt in itertools.product(directions_away(points.Z, panel, points.surrogates), TILTS):
        candidates = outward + tilt * away
        reached = points.highest(candidates, panel)
        better = points.margins(candidates, reached, panel) > points.margins(units[panel], highest[panel], panel)
        units[panel][better] = candidates[better]
        highest[panel][better] = reached[better]


def stack_units(
    units: Floats, thresholds: Floats, Z: Floats, targets: Floats, width: int
) -> tuple[Floats, Floats, Floats]:
    """Stack the units into blocks and solve for V, so that each block moves its points to their targets.

    Within a block an earlier point may fire a later point's unit, never the reverse. The activations form a triangular
    matrix with a positive diagonal, and V is computed by back substitution, for all blocks at once.

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
    # A unit without a point needs a nonzero diagonal; its move is zero.
    diagonal = np.einsum("bpp->bp", activations)
    diagonal[diagonal == 0] = 1.0
    V = moves
    for p in reversed(range(width)):
        later = np.maximum(activations[:, p, None, p + 1 :], 0)
        V[:, p] = (moves[:, p] - (later @ V[:, p + 1 :])[:, 0]) / diagonal[:, p, None]
    return U, s, V


def _common_threshold(Z, surrogates, progress):
    """Return the paper's units, with one threshold midway between the smallest <z, z> and all other products."""
    own, highest = np.einsum("nk,nk->n", Z, Z), products_with_others(Z, surrogates, progress)
    if own.min() <= highest.max():
        raise ValueError(
            f"order='paper' is impossible here: the largest product with another point or surrogate label, "
            f"{highest.max():.3g}, must be below the smallest ||z||^2, {own.min():.3g}. Use order='norm', or a larger "
            f"width than {Z.shape[1]}."
        )
    thresholds = np.full(len(Z), (own.min() + highest.max()) / 2)
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
    """Error for two points that cannot be separated in float64 after the projection."""

    def __init__(self, first: int, second: int, distance: float):
        super().__init__(first, second, distance)
        self.rows, self.distance = (first, second), distance

    def describe(self, names: Sequence[int] | Integers) -> str:
        """Return the error message.

        Args:
            names: indices of the rows in the user's array.
        """
        first, second = (names[row] for row in self.rows)
        return (
            f"Argument `x` has rows that cannot be separated in float64: {first} and {second} have a relative "
            f"distance of {self.distance:.1e} after the projection. Use order='ridge', subtract the mean of x, or "
            f"remove one of the rows."
        )


def _too_close(rows, Z, norms, units, margins):
    worst = min(int(np.argmin(margins)), len(Z) - 2)
    other = worst + 1 + int(np.argmax(Z[worst + 1 :] @ units[worst]))
    return TooClose(int(rows[worst]), int(rows[other]), np.linalg.norm(Z[worst] - Z[other]) / norms[worst])
