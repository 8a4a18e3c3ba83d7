"""Gradient descent of a plain network from the identity towards symmetric targets, one recursion per eigenvalue.

Source: Bartlett, Helmbold & Long (arXiv 1802.06093), for whitened inputs and the identity start; only the abstract was
available. The loss is L = ||Y - f X||_F^2 / (2m), as in `gradient_descent`.
"""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf.linear._arguments import (
    Floats,
    non_negative,
    non_negative_integer,
    positive_integer,
    real_array,
    within_float64,
)

# Relative tolerance for equalities of matrices that theorems assume.
ROUNDING = 1e-12


def scalar_recursions(eigenvalues: ArrayLike, depth: int, learning_rate: float, steps: int) -> Floats:
    """Compute gradient descent from the identity towards a symmetric target in its eigenbasis.

    Every layer multiplies the eigenvector of lambda by a, with a <- a - rate * a^(l-1) (a^l - lambda) from a = 1. The
    excess risk is sum (a^l - lambda)^2 / 2. For lambda > 0 and a small enough rate, a converges to lambda^(1/l). For
    lambda < 0 and l >= 2 it decreases to 0, see `identity_start_barrier`.

    Args:
        eigenvalues: eigenvalues of the target, (d,).
        depth: l.
        learning_rate: learning rate of L = ||Y - f X||_F^2 / (2m).
        steps: number of updates.

    Returns:
        a after each number of updates, (steps + 1, d) float64; NaN if it exceeds float64.
    """
    eigenvalues = real_array("eigenvalues", eigenvalues, ("d",))
    depth, rate = positive_integer("depth", depth), non_negative("learning_rate", learning_rate)
    a = np.empty((non_negative_integer("steps", steps) + 1, len(eigenvalues)))
    a[0] = 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(len(a) - 1):
            a[step + 1] = a[step] - rate * a[step] ** (depth - 1) * (a[step] ** depth - eigenvalues)
    return np.where(np.isfinite(a), a, np.nan)


@within_float64
def identity_start_barrier(R: ArrayLike, depth: int, learning_rate: float) -> float:
    """Return the excess risk below which gradient descent from the identity never falls in exact arithmetic.

    For whitened inputs, symmetric R and l layers, it is the sum of lambda^2 / 2 over negative eigenvalues lambda of R:
    over all of them for even l, and over those with rate (1 + |lambda|) <= 1 for odd l >= 3. For l = 1 it is 0, because
    a single layer reaches every target.

    Proof: all layers stay equal and multiply the eigenvector of lambda by a number a, see `scalar_recursions`. Its
    share of the excess risk, (a^l - lambda)^2 / 2, is at least lambda^2 / 2 if a^l >= 0 > lambda. This always holds for
    even l. For odd l >= 3, let 0 <= a <= 1. The next value is a (1 - rate a^(l-2) (a^l + |lambda|)), which is at most
    a, and at least 0 if rate (1 + |lambda|) <= 1. Otherwise the first step leads to a < 0, and this share is below
    lambda^2 / 2 unless a^l is below 2 lambda. The condition is therefore sharp.

    In floating point the excess risk can fall below the barrier. The maps with a = 0 are saddle points, at which
    rounding errors that make the layers differ grow until descent leaves. For l = 2 they grow by a factor of
    1 + rate |lambda| per step, and leaving takes about 37 / (rate |lambda|) steps; deeper networks take more.
    Source: Bartlett, Helmbold & Long (arXiv 1802.06093, abstract) for the failure. Statement and proof are ours.

    Args:
        R: symmetric matrix, (d, d).
        depth: l.
        learning_rate: learning rate of descent.

    Raises:
        ValueError: if R is not symmetric.

    Example:

    >>> R = [[2.0, 0.0], [0.0, -3.0]]
    >>> [identity_start_barrier(R, depth, 0.3) for depth in (1, 2, 3)]
    [0.0, 4.5, 0.0]
    """
    R = real_array("R", R, ("d", "d"))
    depth, rate = positive_integer("depth", depth), non_negative("learning_rate", learning_rate)
    if (difference := 2 * np.abs(R / 2 - R.T / 2).max()) > ROUNDING * np.abs(R).max():
        raise ValueError(
            f"Argument `R` must be symmetric. Received: a matrix that differs from its transpose by {difference:.3g}"
        )
    eigenvalues = np.linalg.eigvalsh(R)
    held = eigenvalues[(eigenvalues < 0) & ((depth % 2 == 0) | (rate * (1 - eigenvalues) <= 1))]
    return float(np.sum(held**2) / 2) if depth > 1 else 0.0
