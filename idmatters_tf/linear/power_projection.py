"""Gradient descent with projection of the end-to-end map to positive maps, and with balanced layers.

Source: Bartlett, Helmbold & Long, *Gradient descent with identity initialization efficiently learns positive definite
linear transformations by deep residual networks* (arXiv 1802.06093, ICML 2018), which analyzes descent with two
regularizers for targets with u^T R u > 0: one ensures u^T f u > 0 for all u, the other balances the layers to the same
singular values. Only the abstract was available. The projection and the factorization here are exact, and the paper's
constants are not used.
"""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

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
    """Return the nearest matrix in the Frobenius norm with u^T X u >= gamma for all unit vectors u.

    Symmetric and antisymmetric matrices are orthogonal, and u^T X u depends only on the symmetric part. Its eigenvalues
    below gamma are raised to gamma, and the antisymmetric part is unchanged.

    Args:
        M: (d, d).
        gamma: bound, any finite number.

    Returns:
        (d, d) float64; M, up to rounding, if it satisfies the bound.

    Example:

    >>> project_to_positive([[1.0, 2.0], [-2.0, -3.0]], 0.5)
    array([[ 1. ,  2. ],
           [-2. ,  0.5]])
    """
    M = real_array("M", M, ("d", "d"))
    gamma = finite_number("gamma", gamma)
    # Halves do not overflow unless the result does.
    values, vectors = np.linalg.eigh(M / 2 + M.T / 2)
    return np.asarray((vectors * np.maximum(values, gamma)) @ vectors.T + (M / 2 - M.T / 2))


@within_float64
def positivity(M: ArrayLike) -> float:
    """Return the smallest u^T M u over unit vectors u, the smallest eigenvalue of the symmetric part."""
    M = real_array("M", M, ("d", "d"))
    return float(np.linalg.eigvalsh(M / 2 + M.T / 2)[0])


@dataclasses.dataclass(frozen=True)
class Projected:
    """Trajectory of `projected_descent`.

    Attributes:
        excess_risk: L - L_min after each number of updates, (steps + 1,); NaN after a divergence.
        projected: Frobenius distance by which the projection moved the end-to-end map in each step, (steps,).
        weights: final layers, (layers, d, d); NaN after a divergence.
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
    """Run gradient descent of a plain network with projection and new factors of the end-to-end map after each step.

    With f the product of the layers after the step, f becomes `project_to_positive(f, gamma)`. The layers become the
    factors Q^(i/l) P^(1/l) Q^(-(i-1)/l) of f = Q P (`factorize`), which have equal singular values and are exactly
    balanced. For gamma > 0, f has no negative or zero eigenvalues and the factors exist. Rotations of more than 90
    degrees and singular maps cannot be reached.

    Args:
        W: starting point, (layers, d, d), in the order of application.
        sxx: (d, d).
        syx: (d, d).
        learning_rate: learning rate of L = ||Y - f X||_F^2 / (2m).
        steps: number of updates.
        gamma: positive bound on u^T f u; None for no projection.
        balance: True replaces the layers by balanced factors. Required with gamma.

    Returns:
        `Projected`.

    Raises:
        ValueError: if gamma is not positive or is used without balance, or, without gamma, if a product has no balanced
            factors.
    """
    W = real_array("W", W, ("layers", "d", "d")).copy()
    rate = non_negative("learning_rate", learning_rate)
    if gamma is not None and not balance:
        raise ValueError(
            f"Argument `balance` must be True with `gamma`, because a projected map requires new factors. Received: "
            f"gamma={gamma!r}, balance={balance!r}"
        )
    if gamma is not None and not finite_number("gamma", gamma) > 0:
        raise ValueError(f"Argument `gamma` must be positive. Received: gamma={gamma!r}. Pass None for no projection.")
    root, targets = regression(real_array("sxx", sxx, W.shape[1:]), real_array("syx", syx, W.shape[1:]))
    count = positive_integer("steps", steps)
    excess, moved = np.full(count + 1, np.nan), np.zeros(count)
    # Overflow indicates divergence and causes no warning.
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(count + 1):
            jacobians = layer_jacobians(W[:, None], shortcut=False)
            residual = jacobians.end_to_end @ root - targets
            excess[step] = np.linalg.norm(residual) ** 2 / 2
            limit = DIVERGED * max(float(excess[0]), np.finfo(np.float64).tiny)
            if not (np.isfinite(excess[step]) and excess[step] <= limit):
                excess[step], W = np.nan, np.full_like(W, np.nan)
                break
            if step == count:
                break
            W -= rate * jacobians.pull_back(residual @ root.T)
            product = layer_jacobians(W[:, None], shortcut=False).end_to_end
            if balance and np.isfinite(product).all():
                projected = product if gamma is None else project_to_positive(product, gamma)
                moved[step] = np.linalg.norm(projected - product)
                W = np.eye(len(product)) + factorize(projected, len(W))
    return Projected(excess, moved, W)
