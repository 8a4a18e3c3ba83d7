"""Robust memorising: how far a point may move in any direction before the network could answer differently."""

import keras
import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def certified_radii(model: keras.Model, x: ArrayLike) -> Floats:
    """For each row the radius of a ball in which the network of construction="hardt-ma" is proved to answer the same.

    The smallest distance to a hyperplane on which a unit's activation would begin or end, |pre-activation| / ||its
    gradient||, over all units. In the ball of that radius no activation changes, so that the network is affine there,
    and within the distance at which another class's output would draw level the answer stays. Not exceeded by the
    true radius, and up to rounding.

    The other constructions' radii are distances on a line, `LookupReport.smallest_radius`.

    Args:
        model: from `memorize`, or loaded from a file.
        x: (n, d); of any rows, those of the sample or others.

    Returns:
        (n,) float64, in the norm of x. The work grows with rows times parameters times width.

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
    width = U.shape[1]
    units = U.transpose(1, 0, 2).reshape(width, -1)
    thresholds = s.ravel()
    # Norms of gradients with respect to x: ||projection w|| = ||root w||, of k numbers instead of d.
    root = np.linalg.qr(projection, mode="r")
    points = np.asarray(x, np.float64) @ projection + sum(bias)
    first_norms = np.linalg.norm(root @ units, axis=0)
    radii = np.empty(len(points))
    for row, h in enumerate(points):
        radius, block, J, norms = np.inf, 0, root, first_norms
        while block < len(U):
            rest = slice(block * width, None)
            before = h @ units[:, rest] + thresholds[rest]
            active = np.flatnonzero(before > 0)
            # Up to the end of the first block in which a unit fires the Jacobian is the same.
            here = len(U) if not len(active) else block + int(active[0]) // width + 1
            count = (here - block) * width
            radius = min(radius, _distance(before[:count], norms[block * width : here * width]))
            if len(active):
                fires = before[count - width : count] > 0
                columns, moves = U[here - 1][:, fires], V[here - 1][fires]
                J = J + (J @ columns) @ moves
                h = h + before[count - width : count][fires] @ moves
                norms = np.linalg.norm(J @ units, axis=0)
            block = here
        before = h @ last_U + last_s
        J = J @ last_U
        radius = min(radius, _distance(before, np.linalg.norm(J, axis=0)))
        fires = before > 0
        outputs, J = before[fires] @ last_V[fires], J[:, fires] @ last_V[fires]
        best = int(outputs.argmax())
        others = np.arange(len(outputs)) != best
        lead, gradient = outputs[best] - outputs[others], np.linalg.norm(J[:, [best]] - J[:, others], axis=0)
        radii[row] = min(radius, _distance(lead, gradient))
    return radii


def _distance(values: Floats, gradients: Floats) -> float:
    """To the nearest zero of affine functions; those without a gradient, such as units without a point, have none."""
    some = gradients > 0
    return float((np.abs(values[some]) / gradients[some]).min(initial=np.inf))


def _weights(model: keras.Model, layer: str) -> list[Floats]:
    return [np.asarray(keras.ops.convert_to_numpy(one), np.float64) for one in model.get_layer(layer).weights]
