"""Better directions for clustered data: away from the nearest points, as ridge regression sees them."""

import numpy as np

NEIGHBOURS = 32
TILE = 8192
# Of the mean variance of a point's neighbours over the directions.
RIDGE = 0.1


def ridge_directions(Z, panel, surrogates):
    """u_i = (C + lambda I)^(-1) (z_i - m) for the points of a panel, with C and m the covariance and mean of neighbours.

    A unit in the direction z_i has a margin of half the squared distance to the nearest point; in a direction that
    looks away from the neighbours the margin is of the order of the distance itself.

    Args:
        Z: (n, k), the points in order of norms; the neighbours are among those after the point itself.
        panel: a slice of points.
        surrogates: (r, k).

    Returns:
        (points of the panel, k) float64, of norm 1. Whether a direction separates is for the caller to see.
    """
    points, width = Z[panel], Z.shape[1]
    middle = surrogates.mean(axis=0)
    neighbours = np.concatenate([Z, middle[None]])[_neighbours(Z, panel)]
    mean = neighbours.mean(axis=1)
    spread = neighbours - mean[:, None]
    covariance = spread.transpose(0, 2, 1) @ spread / neighbours.shape[1]
    size = np.einsum("pkk->p", covariance) / width
    covariance += (RIDGE * size + np.finfo(float).tiny)[:, None, None] * np.eye(width)
    found = np.linalg.solve(covariance, (points - mean)[:, :, None])[:, :, 0]
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), np.finfo(float).tiny)


def _neighbours(Z, panel):
    """For each point of a panel the numbers of points near it among those after it, and n where there are too few.

    Only the nearest of each strip of neighbouring columns is looked at: a full sort would take longer than all else.
    """
    n, first = len(Z), panel.start
    strip = min(64, max(1, (n - first) // (4 * NEIGHBOURS)))
    tile = TILE // strip * strip
    squares = np.einsum("nk,nk->n", Z, Z)
    best, where = [], []
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
    best, where = np.concatenate(best, axis=1), np.concatenate(where, axis=1)
    if best.shape[1] > NEIGHBOURS:
        nearest = np.argpartition(best, -NEIGHBOURS, axis=1)[:, -NEIGHBOURS:]
        best, where = (np.take_along_axis(array, nearest, axis=1) for array in (best, where))
    return np.where(np.isfinite(best), where, n)
