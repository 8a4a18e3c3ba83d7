"""Directions with larger margins for clustered data, by ridge regression against the nearest points."""

import numpy as np

from idmatters_tf.expressivity._samples import Floats

NEIGHBORS = 32
TILE = 8192
# Ridge penalty, relative to the mean variance of a point's neighbors.
RIDGE = 0.1


def directions_away(Z: Floats, panel: slice, surrogates: Floats) -> tuple[Floats, Floats]:
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
        Two float64 arrays (points of the panel, k), with rows of norm 1 or 0. The caller checks that a direction
        separates.
    """
    points, width = Z[panel], Z.shape[1]
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


def _normalize(vectors):
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)


def _neighbors(Z, panel):
    """Return indices of near points after each point of a panel, and the index of the nearest.

    The index n marks missing neighbors. Only the nearest point of each strip of adjacent columns is considered, because
    a full sort would dominate the time.
    """
    n, first = len(Z), panel.start
    strip = min(64, max(1, (n - first) // (4 * NEIGHBORS)))
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
    if best.shape[1] > NEIGHBORS:
        nearest = np.argpartition(best, -NEIGHBORS, axis=1)[:, -NEIGHBORS:]
        best, where = (np.take_along_axis(array, nearest, axis=1) for array in (best, where))
    where = np.where(np.isfinite(best), where, n)
    return where, np.take_along_axis(where, best.argmax(axis=1)[:, None], axis=1)[:, 0]
