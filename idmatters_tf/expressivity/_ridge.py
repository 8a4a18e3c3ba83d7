"""Better directions for clustered data: away from the nearest points, as ridge regression sees them."""

import numpy as np

from idmatters_tf.expressivity._samples import Floats

NEIGHBOURS = 32
TILE = 8192
# Of the mean variance of a point's neighbours over the directions.
RIDGE = 0.1


def directions_away(Z: Floats, panel: slice, surrogates: Floats) -> tuple[Floats, Floats]:
    """Two directions for each point of a panel that look away from its neighbours.

    A unit in the direction z_i has a margin of half the squared distance to the nearest point; leaning it away from the
    neighbours makes the margin of the order of the distance itself. The directions are (C + lambda I)^(-1) (z_i - m),
    where C and m are the covariance and mean of 32 neighbours, and z_i - z for the nearest z alone, which is better
    where a single point is much nearer than all others.

    Args:
        Z: (n, k), the points in order of norms; the neighbours are among those after the point itself.
        panel: a slice of points.
        surrogates: (r, k); their mean stands in for neighbours where there are too few.

    Returns:
        Two arrays (points of the panel, k), float64, rows of norm 1 or 0. Whether a direction separates is for the
        caller to see.
    """
    points, width = Z[panel], Z.shape[1]
    numbers, nearest = _neighbours(Z, panel)
    candidates = np.concatenate([Z, surrogates.mean(axis=0, keepdims=True)])
    neighbours = candidates[numbers]
    mean = neighbours.mean(axis=1)
    spread = neighbours - mean[:, None]
    covariance = spread.transpose(0, 2, 1) @ spread / neighbours.shape[1]
    variance = np.einsum("pkk->p", covariance) / width
    # The floor is for neighbours that are all the same point.
    ridge = RIDGE * variance + 1e-12 * np.einsum("pk,pk->p", points, points) / width + np.finfo(float).tiny
    covariance += ridge[:, None, None] * np.eye(width)
    away = np.linalg.solve(covariance, (points - mean)[:, :, None])[:, :, 0]
    return _normalized(away), _normalized(points - candidates[nearest])


def _normalized(vectors):
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)


def _neighbours(Z, panel):
    """For each point of a panel the numbers of points near it among those after it, and of the nearest of them.

    The number n says that there are too few.

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
    where = np.where(np.isfinite(best), where, n)
    return where, np.take_along_axis(where, best.argmax(axis=1)[:, None], axis=1)[:, 0]
