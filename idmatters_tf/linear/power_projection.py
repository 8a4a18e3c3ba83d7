"""Gradient descent whose end-to-end map stays positive and whose layers stay balanced.

After Bartlett, Helmbold & Long, *Gradient descent with identity initialization efficiently learns positive definite
linear transformations by deep residual networks* (2018, arXiv 1802.06093), whose two regularizers are for targets R
with u^T R u > 0 for all u. The algorithm is restated here, and their version may differ.
"""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf._arguments import non_negative_integer, positive_integer
from idmatters_tf.linear._arguments import Floats, real_array
from idmatters_tf.linear.factorization import factorize
from idmatters_tf.linear.network import compose
from idmatters_tf.linear.risk import risk_gradient


class PowerProjection(NamedTuple):
    """Result of `power_projection`. A: final layers, (depth, d, d). losses: before each step and at the end."""

    A: Floats
    losses: Floats


def project_positive(matrix: ArrayLike, margin: float) -> Floats:
    """Return the nearest matrix M (Frobenius norm) with u^T M u >= margin for all unit vectors u.

    Only the symmetric part changes: its eigenvalues below the margin are replaced by the margin.

    Args:
        matrix: (d, d).
        margin: a number.

    Example:

    >>> project_positive([[2.0, 1.0], [-1.0, -3.0]], 0.5)
    array([[ 2. ,  1. ],
           [-1. ,  0.5]])
    """
    matrix = real_array("matrix", matrix, ("d", "d"))
    symmetric = (matrix + matrix.T) / 2
    values, vectors = np.linalg.eigh(symmetric)
    return (matrix - symmetric) + vectors * np.maximum(values, margin) @ vectors.T


def power_projection(R: ArrayLike, depth: int, rate: float, steps: int, *, margin: float) -> PowerProjection:
    """Run projected gradient descent of ||(I + A_l) ... (I + A_1) - R||_F^2 / 2 with balanced layers.

    Each step is a step of gradient descent, a projection of the end-to-end map by `project_positive`, and a new
    factorization of it into layers of equal singular values, `factorize(..., "polar")`. The start is
    I + A_i = margin^(1/l) I.

    Args:
        R: target, (d, d). It is reached only if u^T R u >= margin for all unit vectors u.
        depth: l.
        rate: learning rate.
        steps: number of steps.
        margin: a positive number.

    Returns:
        `PowerProjection`.

    Raises:
        ValueError: if the margin is not positive.
    """
    R = real_array("R", R, ("d", "d"))
    depth = positive_integer("depth", depth)
    if not margin > 0:
        raise ValueError(f"Argument `margin` must be positive. Received: margin={margin!r}")
    A = np.tile(np.expm1(math.log(margin) / depth) * np.eye(len(R)), (depth, 1, 1))
    losses = np.empty(non_negative_integer("steps", steps) + 1)
    for step in range(len(losses)):
        losses[step] = np.linalg.norm(compose(A) - R) ** 2 / 2
        if step < steps:
            moved = compose(A - rate / 2 * risk_gradient(A, R))
            A = factorize(project_positive(moved, margin), depth)
    return PowerProjection(A, losses)
