"""Gradient descent from the identity for symmetric targets.

The question is that of Bartlett, Helmbold & Long, *Gradient descent with identity initialization efficiently learns
positive definite linear transformations by deep residual networks* (2018, arXiv 1802.06093). The statements and
constants here are derived, not quoted. The loss is ||(I + A_l) ... (I + A_1) - R||_F^2 / 2, half of the excess of Hardt
& Ma's risk for white inputs.
"""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

import math

import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf._arguments import non_negative_integer, positive_integer
from idmatters_tf.linear._arguments import Floats, real_array


def identity_start_rate(R: ArrayLike, depth: int) -> float:
    """Return 1 / (l max(1, ||R||)^(2 - 2/l)), a learning rate for which descent from the identity is understood.

    With it, every eigenvalue of a symmetric R is reached monotonically if it is at least 0, and is approached by 0
    from above if it is negative; see `eigenvalue_descent`. It is the inverse of the largest curvature along the
    eigenvectors, from the start to the optimum.

    Args:
        R: target, (d, d).
        depth: l, a positive integer.

    Returns:
        A float.

    Example:

    >>> identity_start_rate([[4.0]], 2)
    0.125
    """
    R = real_array("R", R, ("d", "d"))
    depth = positive_integer("depth", depth)
    return 1 / (depth * max(1.0, float(np.linalg.norm(R, 2))) ** (2 - 2 / depth))


def eigenvalue_descent(eigenvalues: ArrayLike, depth: int, rate: ArrayLike, steps: int) -> Floats:
    """Compute descent from the identity for a symmetric target in closed form: one recursion per eigenvalue.

    All layers stay equal and diagonal in the eigenbasis of R. Each of their eigenvalues follows

        a <- a - rate * a^(l-1) * (a^l - r),    a = 1 at the start.

    Let M = max(1, max |r|) and rate <= 1 / (l M^(2 - 2/l)).

    - r >= 0: a^l converges to r without overshoot. The distance of a from r^(1/l) decreases in each step at least by
      the factor 1 - rate * l * min(1, r)^(2 - 2/l). (Proof: a^l - r = (a - r^(1/l)) * sum of l products, each between
      the smaller and the larger of a and r^(1/l) to the power l - 1.)
    - r < 0 and depth >= 2: a decreases to 0 and never becomes negative, because rate * (1 + |r|) <= 1. The loss of this
      eigenvalue is above r^2 / 2 at every step, and a^l is about (rate * |r| * (l - 2) * t)^(-l / (l - 2)) after t
      steps (l >= 3), or (1 - rate * |r|)^(2t) (l = 2).

    The restriction of the rate is necessary: for l = 3, r = -1 and rate = 0.6 the first step passes 0, and a^l
    converges to r.

    Args:
        eigenvalues: eigenvalues r of the target, any shape.
        depth: l, a positive integer.
        rate: learning rate; a number, or an array that broadcasts against `eigenvalues`.
        steps: number of steps.

    Returns:
        Eigenvalue a of every layer after the last step, of the broadcast shape. That of the network is a ** depth.

    Example:

    >>> (eigenvalue_descent([4.0, -1.0], 2, 0.1, 200) ** 2).round(12) + 0.0
    array([4., 0.])
    """
    r = real_array("eigenvalues", eigenvalues, None)
    depth = positive_integer("depth", depth)
    rate = real_array("rate", rate, None)
    a = np.ones(np.broadcast_shapes(r.shape, rate.shape))
    for _ in range(non_negative_integer("steps", steps)):
        power = a ** (depth - 1)
        a -= rate * power * (power * a - r)
    return a


def identity_start_limit(R: ArrayLike) -> float:
    """Return the loss at which descent from the identity stops for a symmetric target: sum of r^2 / 2 over r < 0.

    Args:
        R: symmetric target, (d, d).

    Raises:
        ValueError: if R is not symmetric.

    Example:

    >>> identity_start_limit([[3.0, 0.0], [0.0, -2.0]])
    2.0
    """
    R = real_array("R", R, ("d", "d"))
    if (difference := np.abs(R - R.T).max()) > 1e-12 * np.abs(R).max():
        raise ValueError(
            f"Argument `R` must be symmetric. Received: a matrix that differs from its transpose by {difference:.3g}."
        )
    eigenvalues = np.linalg.eigvalsh((R + R.T) / 2)
    return float(np.square(np.minimum(eigenvalues, 0)).sum() / 2)


def identity_limit_curvature(R: ArrayLike, depth: int) -> float:
    """Return the smallest eigenvalue of the Hessian of ||f - R||_F^2 / 2 at the limit of descent from the identity.

    At the limit, all layers are diagonal in the eigenbasis of the symmetric R, with the eigenvalues max(r, 0)^(1/l).
    The smallest eigenvalue is the minimum of 0 and of

        r_j^(1 - 2/l) (r_j - |r_i|)    over r_j > 0 and r_i < 0, and of r_i for l = 2.

    In such a direction, the first layer sends eigenvector i to j and the last one sends it back. For depth 3 and more,
    the limit is a strict saddle point if a positive eigenvalue is smaller than the absolute value of a negative one.
    Descent in exact arithmetic does not see it, because all layers stay diagonal. Rounding errors grow by the factor
    1 - rate * curvature in a step, and leave it after about log(1e16) / log(1 - rate * curvature) steps.

    Args:
        R: symmetric target without the eigenvalue 0, (d, d).
        depth: l, at least 2.

    Example:

    >>> round(identity_limit_curvature([[1.0, 0.0], [0.0, -3.0]], 4), 12)
    -2.0
    """
    R = real_array("R", R, ("d", "d"))
    depth = positive_integer("depth", depth)
    r = np.linalg.eigvalsh(R)
    positive, negative = r[r > 0], -r[r < 0]
    pairs = positive[:, None] ** (1 - 2 / depth) * (positive[:, None] - negative)
    return float(min(pairs.min(initial=0.0), -negative.max(initial=0.0) if depth == 2 else 0.0))


def steps_to_loss(R: ArrayLike, depth: int, rate: float, loss: float) -> int:
    """Return an upper bound of the number of steps from the identity to a loss, for a symmetric positive definite R.

    With M = max(1, r_max), m = min(1, r_min) and q = rate * l * m^(2 - 2/l), each eigenvalue of the network is within
    l M^(1 - 1/l) (1 - q)^t |r^(1/l) - 1| of r after t steps. For `rate=identity_start_rate(R, l)` it is at most
    (M / m)^(2 - 2/l) times a logarithm, and so does not grow with the depth otherwise.

    Args:
        R: symmetric target, (d, d).
        depth: l.
        rate: learning rate, at most `identity_start_rate(R, depth)`.
        loss: loss ||f - R||_F^2 / 2 to be reached, positive.

    Raises:
        ValueError: if R is not positive definite.
    """
    R = real_array("R", R, ("d", "d"))
    depth = positive_integer("depth", depth)
    r = np.linalg.eigvalsh(R)
    if r[0] <= 0:
        raise ValueError(f"Argument `R` must be positive definite. Received: a matrix with the eigenvalue {r[0]:.3g}.")
    factor = 1 - rate * depth * min(1.0, r[0]) ** (2 - 2 / depth)
    distance = np.linalg.norm(depth * max(1.0, r[-1]) ** (1 - 1 / depth) * np.expm1(np.log(r) / depth))
    if (start := float(distance**2) / 2) <= loss:
        return 0
    return math.ceil(math.log(loss / start) / (2 * math.log(factor))) if factor > 0 else 1
