"""Gradient descent whose end-to-end map is kept positive and whose layers are kept balanced.

Source: Bartlett, Helmbold & Long, *Gradient descent with identity initialization efficiently learns positive definite
linear transformations by deep residual networks* (arXiv 1802.06093, ICML 2018), which analyses descent with two
regularizers for targets with u^T R u > 0: one keeps u^T f u > 0 for all u, the other balances the layers so that they
have the same singular values. Only the abstract was at hand: the projection and the factorization below are the exact
ones, and the paper's constants are not used.
"""

# pyright: reportConstantRedefinition=false
# Matrices have capital letters, and an argument is checked under its own name.

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf.linear._arguments import (
    Floats,
    finite_number,
    non_negative,
    positive_integer,
    real_array,
    within_float64,
)
from idmatters_tf.linear.dynamics import DIVERGED
from idmatters_tf.linear.factorization import factorize
from idmatters_tf.linear.shortcuts import layer_jacobians
from idmatters_tf.linear.statistics import regression


@within_float64
def project_to_positive(M: ArrayLike, gamma: float) -> Floats:
    """The nearest matrix in the Frobenius norm with u^T X u >= gamma for all unit vectors u.

    Symmetric and antisymmetric matrices are orthogonal, and u^T X u is about the symmetric part alone: its eigenvalues
    below gamma are raised to gamma, and the antisymmetric part stays.

    Args:
        M: (d, d).
        gamma: the bound, any finite number.

    Returns:
        (d, d) float64; M itself, up to rounding, where it satisfies the bound.

    Example:

    >>> project_to_positive([[1.0, 2.0], [-2.0, -3.0]], 0.5)
    array([[ 1. ,  2. ],
           [-2. ,  0.5]])
    """
    M = real_array("M", M, ("d", "d"))
    gamma = finite_number("gamma", gamma)
    # Halves cannot overflow where the result does not.
    values, vectors = np.linalg.eigh(M / 2 + M.T / 2)
    return np.asarray((vectors * np.maximum(values, gamma)) @ vectors.T + (M / 2 - M.T / 2))


@within_float64
def positivity(M: ArrayLike) -> float:
    """The smallest u^T M u over unit vectors u: the smallest eigenvalue of the symmetric part."""
    M = real_array("M", M, ("d", "d"))
    return float(np.linalg.eigvalsh(M / 2 + M.T / 2)[0])


@dataclasses.dataclass(frozen=True)
class Projected:
    """A trajectory of `projected_descent`.

    Attributes:
        excess_risk: L - L_min after each number of updates, (steps + 1,); NaN from a divergence on.
        projected: how far the projection moved the end-to-end map in each step, Frobenius, (steps,).
        weights: the last layers, (layers, d, d); NaN after a divergence.
    """

    excess_risk: Floats
    projected: Floats
    weights: Floats


def projected_descent(
    W: ArrayLike,
    sxx: ArrayLike,
    syx: ArrayLike,
    learning_rate: float,
    steps: int,
    gamma: float | None = None,
    balance: bool = True,
) -> Projected:
    """Gradient descent of a plain network; after each step the end-to-end map is projected, and factorized anew.

    With f the product of the layers after the step: f becomes `project_to_positive(f, gamma)`, and the layers become
    the factors Q^(i/l) P^(1/l) Q^(-(i-1)/l) of f = Q P (`factorize`), which all have the same singular values and are
    exactly balanced. For gamma > 0 no eigenvalue of f is negative or zero, so that the factors always exist: rotations
    of more than 90 degrees are out of reach, and so is a singular f.

    Args:
        W: the starting point, (layers, d, d), applied in this order.
        sxx, syx: (d, d).
        learning_rate: of L = ||Y - f X||_F^2 / (2m).
        steps: the number of updates.
        gamma: the bound on u^T f u, above 0; None for no projection.
        balance: whether the layers are factorized anew; required with gamma.

    Returns:
        `Projected`.

    Raises:
        ValueError: for gamma of 0 or less or without balance, and where without gamma a product has no balanced
            factors.
    """
    W = real_array("W", W, ("layers", "d", "d")).copy()
    rate = non_negative("learning_rate", learning_rate)
    if gamma is not None and not balance:
        raise ValueError(
            f"Argument `balance` must be True with `gamma`: a projected map needs new factors. Received: "
            f"gamma={gamma!r}, balance={balance!r}"
        )
    if gamma is not None and not finite_number("gamma", gamma) > 0:
        raise ValueError(
            f"Argument `gamma` must be above 0: a map with u^T f u = 0 can be singular, without balanced factors. "
            f"Received: gamma={gamma!r}. Pass None for no projection."
        )
    root, targets = regression(real_array("sxx", sxx, W.shape[1:]), real_array("syx", syx, W.shape[1:]))
    count = positive_integer("steps", steps)
    excess, moved = np.full(count + 1, np.nan), np.zeros(count)
    # Overflow is how divergence is seen: no warning.
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(count + 1):
            before, after, product = layer_jacobians(W[:, None], shortcut=False)
            residual = product @ root - targets
            excess[step] = np.linalg.norm(residual) ** 2 / 2
            limit = DIVERGED * max(float(excess[0]), np.finfo(np.float64).tiny)
            if not (np.isfinite(excess[step]) and excess[step] <= limit):
                excess[step], W = np.nan, np.full_like(W, np.nan)
                break
            if step == count:
                break
            W -= rate * (after.swapaxes(-1, -2) @ (residual @ root.T) @ before.swapaxes(-1, -2))
            product = layer_jacobians(W[:, None], shortcut=False).end_to_end
            if balance and np.isfinite(product).all():
                projected = product if gamma is None else project_to_positive(product, gamma)
                moved[step] = np.linalg.norm(projected - product)
                W = np.eye(len(product)) + factorize(projected, len(W))
    return Projected(excess, moved, W)
