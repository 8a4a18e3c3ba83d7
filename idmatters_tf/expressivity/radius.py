"""Robust memorising: how far a point may move in any direction before the network could answer differently."""

from collections.abc import Callable
from typing import cast

import keras
import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmatters_tf.expressivity.construction import Weights

Floats = NDArray[np.float64]

# A squared norm below this share of the terms that it is the sum of has lost digits, and is computed anew.
CANCELLED = 1e-8


def certified_radii(model: keras.Model, x: ArrayLike, progress: Callable[[int, int], object] | None = None) -> Floats:
    """For each row the radius of a ball in which the network of construction="hardt-ma" is proved to answer the same.

    The smallest distance to a hyperplane on which a unit's activation would begin or end, |pre-activation| / ||its
    gradient||, over all units. In the ball of that radius no activation changes, so that the network is affine there,
    and within the distance at which another class's output would draw level the answer stays. Not exceeded by the
    true radius, and up to rounding.

    The other constructions' radii are distances on a line, `LookupReport.smallest_radius`.

    Args:
        model: from `memorize`, or loaded from a file.
        x: (n, d); of any rows, those of the sample or others.
        progress: called with (rows done, n).

    Returns:
        (n,) float64, in the norm of x. The work grows with rows times units times width.

    Raises:
        ValueError: for a model of another construction.
    """
    names = {layer.name for layer in model.layers}
    if not {"projection", "blocks", "last_hidden", "last"} <= names:
        raise ValueError(
            f"Argument `model` must be of construction='hardt-ma'. Received: layers {sorted(names)}. The report of the "
            f"other constructions has their radii."
        )
    projection, *bias = _weights(model, "projection")
    U, s, V = _weights(model, "blocks")
    last_U, last_s = _weights(model, "last_hidden")
    (last_V,) = _weights(model, "last")
    nothing = np.empty(0)
    weights = Weights(
        projection, bias[0] if bias else None, U, s, V, last_U, last_s, last_V, nothing.astype(int), nothing
    )
    return radii_of(weights, x, progress)


def radii_of(weights: Weights, x: ArrayLike, progress: Callable[[int, int], object] | None = None) -> Floats:
    """`certified_radii` of the network with these weights.

    A point of the sample fires in one block of thousands. Where units with columns c_f of U and rows m_f of V fire, the
    Jacobian J becomes J + sum_f J c_f m_f^T, and the squared norm of a later unit's gradient J u changes by
    2 sum_f <J c_f, J u> <m_f, u> + ||sum_f J c_f <m_f, u>||^2: two products with few rows instead of one with all of J.

    Args:
        weights: of the network.
        x: (n, d).
        progress: called with (rows done, n).

    Returns:
        (n,) float64, in the norm of x.
    """
    U, s, V = weights.U, weights.s, weights.V
    blocks, width = U.shape[0], U.shape[2]
    units = np.ascontiguousarray(U.transpose(1, 0, 2)).reshape(U.shape[1], -1)
    thresholds = s.ravel()
    # Norms of gradients with respect to x: ||projection w|| = ||root w||, of k numbers instead of d.
    root = cast(Floats, np.linalg.qr(weights.projection, mode="r"))
    points = np.asarray(x, np.float64) @ weights.projection
    if weights.bias is not None:
        points = points + weights.bias
    first = np.linalg.norm(root @ units, axis=0) ** 2
    radii = np.empty(len(points))

    def radius_of(h: Floats) -> float:
        squared, block, J, radius = first, 0, root, np.inf
        while block < blocks:
            rest = slice(block * width, None)
            before = h @ units[:, rest] + thresholds[rest]
            active = np.flatnonzero(before > 0)
            # Up to the end of the first block in which a unit fires the Jacobian is the same.
            here = blocks if not len(active) else block + int(active[0]) // width + 1
            count = (here - block) * width
            radius = min(radius, _distance(before[:count], np.sqrt(squared[:count])))
            squared = squared[count:]
            if len(active):
                fires = before[count - width : count] > 0
                columns, moves = J @ U[here - 1][:, fires], V[here - 1][fires]
                squared = _updated(squared, J, columns, moves, units[:, here * width :])
                J = J + columns @ moves
                h = h + before[count - width : count][fires] @ moves
            block = here
        return min(radius, _last_block(h, J, weights))

    # A network of width 1 may overflow far from its sample: nothing is certified there.
    with np.errstate(over="ignore", invalid="ignore"):
        for row, h in enumerate(points):
            radius = radius_of(h)
            radii[row] = radius if np.isfinite(radius) or radius == np.inf else 0.0
            if progress is not None and (row + 1) % 100 == 0:
                progress(row + 1, len(points))
    return radii


def _updated(squared: Floats, J: Floats, columns: Floats, moves: Floats, later: Floats) -> Floats:
    """||(J + columns moves) u||^2 for the columns u of `later`, from ||J u||^2."""
    if not later.shape[1]:
        return squared
    moved = moves @ later
    along = (columns.T @ J) @ later
    cross = 2 * np.einsum("fu,fu->u", along, moved)
    square = np.einsum("fu,fu->u", moved, (columns.T @ columns) @ moved)
    updated = squared + cross + square
    # Not <=: also where a sum overflows and is NaN.
    lost = np.flatnonzero(~(updated > CANCELLED * (squared + np.abs(cross) + square)))
    if len(lost):
        gradients = (J + columns @ moves) @ later[:, lost]
        updated[lost] = np.einsum("ku,ku->u", gradients, gradients)
    return updated


def _last_block(h: Floats, J: Floats, weights: Weights) -> float:
    before = h @ weights.last_U + weights.last_s
    J = J @ weights.last_U
    radius = _distance(before, np.linalg.norm(J, axis=0))
    fires = before > 0
    outputs, J = before[fires] @ weights.last_V[fires], J[:, fires] @ weights.last_V[fires]
    best = int(outputs.argmax())
    others = np.arange(len(outputs)) != best
    lead, gradient = outputs[best] - outputs[others], np.linalg.norm(J[:, [best]] - J[:, others], axis=0)
    return min(radius, _distance(lead, gradient))


def _distance(values: Floats, gradients: Floats) -> float:
    """To the nearest zero of affine functions; those without a gradient, such as units without a point, have none."""
    some = gradients > 0
    return float((np.abs(values[some]) / gradients[some]).min(initial=np.inf))


def _weights(model: keras.Model, layer: str) -> list[Floats]:
    return [np.asarray(keras.ops.convert_to_numpy(one), np.float64) for one in model.get_layer(layer).weights]
