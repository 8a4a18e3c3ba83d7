"""Memorizing residual networks in NumPy float64: the weights that map n distinct points to their labels.

The network is h_0 = A_0 x (+ b), then h <- h + V_j relu(U_j h + s_j) for j = 1, ..., ceil(n/k), and finally V relu(U h
+ s) without skip. Each block moves k points from their projections to the surrogate labels of their classes and leaves
all other points in place. It moves fewer points, and there are more blocks, if the norms cover so many orders of
magnitude that k points would lose their digits. Hardt & Ma's proof of Theorem 3.2 assumes norms of 1 and a smallest
distance, and uses one threshold for all units, which requires a width in the hundreds. Here the points are moved in
descending order of their norms. If point i has the largest norm of the remaining points, Cauchy-Schwarz gives
<z_i, z_i> > <z_i, z> for all others at any width, and each unit has its own threshold between the two.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np

from idmatters_tf.expressivity._samples import (
    Floats,
    Integers,
    Points,
    chunks,
    distinct_rows,
    largest_magnitude,
    slices,
)
from idmatters_tf.expressivity._surrogates import directions, last_block, surrogate_labels

Order: TypeAlias = Literal["norm", "ridge"]

# Rows and columns of the tiles of inner products, which fit into the cache.
PANEL = 256
TILE = 4096
# Relative margins below this are rounding errors.
SMALLEST_MARGIN = 16 * np.finfo(float).eps
# A relative margin a thousand times float32's rounding error.
CLOSE = 1e-3
# Neighbors that a direction leans away from, and columns of the tiles in which they are found.
NEIGHBORS = 32
NEIGHBOR_TILE = 8192
# Ridge penalty relative to the mean variance of the neighbors.
RIDGE = 0.1
# Weights of the direction away from the neighbors, relative to the point's own direction.
TILTS = (0.03, 0.3, 3.0)
# Below this fraction of the largest norm, surrogate labels of half the smallest norm lose their digits.
SMALLEST_NORM = 1e-6
# Largest rounding error of the points after a block, relative to the smallest surrogate label.
LARGEST_ROUNDING = 1e-3


@dataclasses.dataclass(frozen=True)
class Weights:
    """Kernels for row vectors, float64: x @ projection + bias, and for each block relu(h @ U + s) @ V.

    Attributes:
        projection, bias: (d, k), and (k,) or None.
        U, s, V: (blocks, k, k), (blocks, k), (blocks, k, k). Units without a point, at the ends of blocks, are zero.
        last_U, last_s, last_V: (k, r), (r,), (r, r).
        order: row of x that each unit moves, in order of application; (n,) for n distinct rows.
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


def construct(
    x: Points,
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

    The arguments are those of `memorize`, with `progress(points done, n)`.

    Raises:
        ValueError: if equal rows have different labels, or if two rows cannot be separated in float64.
    """
    rng = np.random.default_rng(seed)
    kept = distinct_rows(x, labels)
    x = x[kept]
    labels = labels[kept]
    projection, bias, Z = project(x, width, rng)
    norms = np.linalg.norm(Z, axis=1)
    # A stable sort keeps points of equal norm in the order of the rows.
    rows = np.argsort(-norms, kind="stable")
    Z = Z[rows]
    norms = norms[rows]
    surrogates = surrogate_labels(classes, width, norms[-1] / 2, rng)
    units, highest, margins = _unit_by_unit(Z, norms, surrogates, order, progress)
    _check_margins(margins, kept[rows], Z, norms, units)
    thresholds = (np.einsum("nk,nk->n", units, Z) + highest) / 2
    U, s, V = _stack_units(units, thresholds, Z, surrogates[labels[rows]], width)
    return Weights(projection, bias, U, s, V, *last_block(surrogates), kept[rows], margins)


def project(x: Points, width: int, rng: np.random.Generator) -> tuple[Floats, Floats | None, Floats]:
    """Draw A_0 and project the points.

    Returns:
        (projection (d, k), bias (k,) or None, points (n, k)). The bias is the image of a constant coordinate appended
        to x. It is added if a point would be projected to zero or nearly zero.
    """
    # A power of two keeps the squares in range without rounding errors.
    scale = np.ldexp(1.0, np.frexp(largest_magnitude(x))[1] - 1)
    size = sum(np.sum(np.square(x[rows] / scale)) for rows in chunks(x))
    size = np.sqrt(size / len(x)) or 1.0
    projection = rng.standard_normal((x.shape[1], width)) / (np.sqrt(width) * size) / scale
    Z = np.empty((len(x), width))
    for rows in chunks(x):
        np.matmul(x[rows].astype(np.float64, copy=False), projection, out=Z[rows])
    norms = np.linalg.norm(Z, axis=1)
    if norms.min() > SMALLEST_NORM * norms.max():
        return projection, None, Z
    # With a bias of length b, the surrogate labels have relative rounding errors of eps largest / b, and the shortest
    # points have margins of (smallest / b)^2. This length balances the two.
    largest = norms.max() or 1.0
    smallest = norms.min(where=norms > 0, initial=largest)
    bias = 2 * largest ** (1 / 3) * smallest ** (2 / 3) * directions(rng, 1, width)[0]
    Z += bias
    return projection, bias, Z


def highest_products(units: Points, Z: Points, own: Integers) -> Points:
    """Return the largest <u, z> over the points after the unit's own point, for each unit; -inf for the last point.

    Args:
        units: (p, k), units of a few points, in order.
        Z: (n, k), all points in order, in the dtype of the products.
        own: (p,), indices of the units' own points, ascending.
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


def _unit_by_unit(
    Z: Floats, norms: Floats, surrogates: Floats, order: str, progress: Callable[[int, int], object] | None
) -> tuple[Floats, Floats, Floats]:
    """Return directions (n, k), the largest product that must not fire each unit (n,), and relative margins (n,)."""
    n = len(Z)
    units = Z.copy()
    highest = np.empty(n)
    single = Z.astype(np.float32)

    def compute_margins(units: Floats, highest: Floats, panel: slice) -> Floats:
        own = np.einsum("nk,nk->n", units, Z[panel])
        return (own - highest) / (np.linalg.norm(units, axis=1) * norms[panel])

    def compute_highest(units: Floats, panel: slice) -> Floats:
        # float32 is twice as fast and accurate enough for a threshold in the middle of a margin. Small margins are
        # recomputed in float64.
        own = np.arange(panel.start, panel.stop)
        beside = (units @ surrogates.T).max(axis=1)
        products = np.maximum(highest_products(units.astype(np.float32), single, own), beside)
        close = np.flatnonzero(compute_margins(units, products, panel) < CLOSE)
        if len(close):
            products[close] = np.maximum(highest_products(units[close], Z, own[close]), beside[close])
        return products

    for panel in slices(n, PANEL):
        highest[panel] = compute_highest(Z[panel], panel)
        if order == "ridge":
            outward = Z[panel] / norms[panel, None]
            for away, tilt in itertools.product(_directions_away(Z, panel, surrogates), TILTS):
                candidates = outward + tilt * away
                reached = compute_highest(candidates, panel)
                margins = compute_margins(units[panel], highest[panel], panel)
                better = compute_margins(candidates, reached, panel) > margins
                units[panel][better] = candidates[better]
                highest[panel][better] = reached[better]
        if progress is not None:
            progress(panel.stop, n)
    return units, highest, compute_margins(units, highest, slice(0, n))


def _directions_away(Z: Floats, panel: slice, surrogates: Floats) -> tuple[Floats, Floats]:
    """Compute two directions for each point of a panel that lean away from its neighbors.

    A unit in the direction z_i has a margin of half the squared distance to the nearest point. Leaning away from the
    neighbors gives a margin of the order of the distance itself. The directions are (C + lambda I)^(-1) (z_i - m),
    where C and m are the covariance and mean of 32 neighbors, and z_i - z for the nearest z, which is better if one
    point is much nearer than all others.

    Args:
        Z: (n, k), points in order of norms. Neighbors are among the points after the point itself.
        panel: slice of points.
        surrogates: (r, k). Their mean replaces missing neighbors.

    Returns:
        Two float64 arrays (points of the panel, k), with rows of norm 1 or 0, which may not separate the points.
    """
    points = Z[panel]
    width = Z.shape[1]
    numbers, nearest = _neighbors(Z, panel)
    candidates = np.concatenate([Z, surrogates.mean(axis=0, keepdims=True)])
    neighbors = candidates[numbers]
    mean = neighbors.mean(axis=1)
    spread = neighbors - mean[:, None]
    covariance = spread.transpose(0, 2, 1) @ spread / neighbors.shape[1]
    variance = np.einsum("pkk->p", covariance) / width
    # The lower bound covers neighbors that are all the same point.
    ridge = RIDGE * variance + 1e-12 * np.einsum("pk,pk->p", points, points) / width + np.finfo(float).tiny
    covariance += ridge[:, None, None] * np.eye(width)
    away = np.linalg.solve(covariance, (points - mean)[:, :, None])[:, :, 0]
    return _normalize(away), _normalize(points - candidates[nearest])


def _normalize(vectors: Floats) -> Floats:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)


def _neighbors(Z: Floats, panel: slice) -> tuple[Integers, Integers]:
    """Return indices of near points after each point of a panel, and the index of the nearest.

    The index n marks missing neighbors. Only the nearest point of each strip of adjacent columns is considered, because
    a full sort would dominate the time.
    """
    n = len(Z)
    first = panel.start
    strip = min(64, max(1, (n - first) // (4 * NEIGHBORS)))
    tile = NEIGHBOR_TILE // strip * strip
    squares = np.einsum("nk,nk->n", Z, Z)
    best = []
    where = []
    for start in range(first, n, tile):
        stop = min(start + tile, n)
        scores = np.full((panel.stop - first, -(-(stop - start) // strip) * strip), -np.inf)
        scores[:, : stop - start] = 2 * Z[panel] @ Z[start:stop].T - squares[start:stop]
        if start < panel.stop:
            columns = np.arange(start, start + scores.shape[1])
            scores[columns <= np.arange(first, panel.stop)[:, None]] = -np.inf
        strips = scores.reshape(len(scores), -1, strip)
        chosen = strips.argmax(axis=2)
        best.append(np.take_along_axis(strips, chosen[:, :, None], axis=2)[:, :, 0])
        where.append(chosen + start + strip * np.arange(strips.shape[1]))
    best = np.concatenate(best, axis=1)
    where = np.concatenate(where, axis=1)
    if best.shape[1] > NEIGHBORS:
        nearest = np.argpartition(best, -NEIGHBORS, axis=1)[:, -NEIGHBORS:]
        best = np.take_along_axis(best, nearest, axis=1)
        where = np.take_along_axis(where, nearest, axis=1)
    where = np.where(np.isfinite(best), where, n)
    return where, np.take_along_axis(where, best.argmax(axis=1)[:, None], axis=1)[:, 0]


def _stack_units(
    units: Floats, thresholds: Floats, Z: Floats, targets: Floats, width: int
) -> tuple[Floats, Floats, Floats]:
    """Stack the units into blocks and solve for V, so that each block moves its points to their targets.

    Earlier points with large norms fire the units of later points with small ones. Through many units, V grows beyond
    the rounding errors of the targets. Each block then gets half as many units, repeatedly.

    Returns:
        U (blocks, k, k), s (blocks, k), V (blocks, k, k), for row vectors.
    """
    smallest = np.linalg.norm(targets, axis=1).min()
    used = width
    while True:
        U, s, V, largest = _fill_blocks(units, thresholds, Z, targets, width, used)
        if used == 1 or np.finfo(float).eps * largest <= LARGEST_ROUNDING * smallest:
            return U, s, V
        used = (used + 1) // 2


def _fill_blocks(
    units: Floats, thresholds: Floats, Z: Floats, targets: Floats, width: int, used: int
) -> tuple[Floats, Floats, Floats, float]:
    """Return U, s and V of blocks with a number of used units each, and the largest sum of |activation| |V|.

    Within a block an earlier point may fire a later point's unit, never the reverse. The activations form a triangular
    matrix with a positive diagonal, and V is computed by back substitution, for all blocks at once.
    """
    blocks = -(-len(Z) // used)

    def stacked(array: Floats) -> Floats:
        padding = blocks * used - len(array)
        return np.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1)).reshape(blocks, used, *array.shape[1:])

    U = np.ascontiguousarray(stacked(units).transpose(0, 2, 1))
    s = -stacked(thresholds)
    moves = stacked(targets - Z)
    activations = stacked(Z) @ U
    activations += s[:, None, :]
    # A unit without a point needs a nonzero diagonal; its move is zero.
    diagonal = np.einsum("bpp->bp", activations)
    diagonal[diagonal == 0] = 1.0
    V = moves
    for p in reversed(range(used)):
        later = np.maximum(activations[:, p, None, p + 1 :], 0)
        V[:, p] = (moves[:, p] - (later @ V[:, p + 1 :])[:, 0]) / diagonal[:, p, None]
    # In parts, because these arrays have the size of the network.
    largest = max(
        float((np.maximum(np.triu(activations[part]), 0) @ np.abs(V[part])).max()) for part in slices(blocks, PANEL)
    )
    if used == width:
        return U, s, V, largest
    unused = [(0, 0), (0, width - used)]
    return np.pad(U, [(0, 0), *unused]), np.pad(s, unused), np.pad(V, [*unused, (0, 0)]), largest


def _check_margins(margins: Floats, rows: Integers, Z: Floats, norms: Floats, units: Floats) -> None:
    """Raise ValueError if two points cannot be separated in float64 after the projection; `rows` are their names."""
    if margins.min() < SMALLEST_MARGIN:
        worst = min(int(np.argmin(margins)), len(Z) - 2)
        other = worst + 1 + int(np.argmax(Z[worst + 1 :] @ units[worst]))
        distance = np.linalg.norm(Z[worst] - Z[other]) / norms[worst]
        raise ValueError(
            f"Argument `x` has rows that cannot be separated in float64: {rows[worst]} and {rows[other]} have a "
            f"relative distance of {distance:.1e} after the projection. Use order='ridge', subtract the mean of x, or "
            f"remove one of the rows."
        )
