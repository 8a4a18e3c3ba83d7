"""Surrogate labels: vectors in place of the one-hot vectors of the classes, and the last block that decodes them."""

import numpy as np

from idmatters_tf.expressivity._samples import Floats

# Random directions from which each surrogate label is chosen.
CANDIDATES_PER_CLASS = 8


def surrogate_labels(classes: int, dim: int, norm: float, rng: np.random.Generator) -> Floats:
    """Choose vectors of at most the given norm that are far from one another.

    The paper draws random unit vectors, whose inner products are below 1/2 only from about dim = 16 ln(classes) on
    (printed: 4 ln). Here each vector is the one farthest from the previous ones among many random directions. In one
    dimension the vectors are evenly spaced. Returns (classes, dim) float64.
    """
    if dim == 1:
        return norm * np.arange(classes, 0, -1.0)[:, None] / classes
    pool = directions(rng, CANDIDATES_PER_CLASS * classes, dim)
    chosen = np.empty((classes, dim))
    nearest = np.full(len(pool), -np.inf)
    for number in range(classes):
        chosen[number] = pool[np.argmin(nearest)]
        np.maximum(nearest, pool @ chosen[number], out=nearest)
    return norm * chosen


def directions(rng: np.random.Generator, count: int, dim: int) -> Floats:
    """Draw random unit vectors, (count, dim)."""
    normal = rng.standard_normal((count, dim))
    return normal / np.linalg.norm(normal, axis=1, keepdims=True)


def last_block(surrogates: Floats) -> tuple[Floats, Floats, Floats]:
    """Compute the block without skip, V relu(U h + s), that maps each surrogate label to its one-hot vector.

    The shapes are those of version 3: U (r, k), V (r, r). Surrogates must be distinct and in non-increasing order of
    norm.

    Returns:
        Kernels for row vectors: U (k, r), s (r,), V (r, r), with relu(surrogates @ U + s) @ V = identity.
    """
    products = surrogates @ surrogates.T
    own = np.diag(products)
    # A later surrogate never fires an earlier unit. An earlier one may fire a later unit only if the norms differ.
    others = np.where(np.tri(len(own), k=-1, dtype=bool).T, products, -np.inf).max(axis=1)
    others = np.maximum(others, 0)
    s = -(own + others) / 2
    activations = np.triu(np.maximum(products.T + s, 0))
    return surrogates.T.copy(), s, np.linalg.inv(activations)
