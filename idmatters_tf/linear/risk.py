"""Population risk of linear residual networks, its gradient, and gradient dominance.

Source: Hardt & Ma, *Identity Matters in Deep Learning*, section 2. v1 is the ICLR submission, v2 and v3 are the arXiv
versions. The docstrings note where they disagree.
"""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf.linear._arguments import Floats, covariance_matrix, non_negative, real_array
from idmatters_tf.linear.network import compose, layer_norms
from idmatters_tf.linear.shortcuts import layer_jacobians
from idmatters_tf.linear.statistics import EPS, TINY, scaled_root

# Relative tolerance for rounding at equality in (2.3), for well-conditioned S.
ROUNDING = 1e-7


def population_risk(
    A: ArrayLike, R: ArrayLike, covariance: ArrayLike | None = None, noise_variance: float = 1.0
) -> float:
    """Compute f(A) = E ||(I + A_l) ... (I + A_1) x - R x - xi||^2 = ||E S^(1/2)||_F^2 + C.

    Here E = (I + A_l) ... (I + A_1) - R, S = E[x x^T], and the minimum is C = E||xi||^2 = d * noise_variance. The
    computation from E keeps the relative accuracy of the excess above C near an optimum.
    Source: Claim 2.3. v1 prints C = E[x x^T], which is a matrix.

    Args:
        A: (depth, d, d), A[0] is applied first.
        R: target map, (d, d).
        covariance: covariance S of the inputs, (d, d); the identity if None.
        noise_variance: variance of each coordinate of xi.

    Returns:
        A float.

    Example:

    >>> population_risk([[[0.5]]], [[2.0]], noise_variance=1.0)
    1.25
    """
    A, R, covariance = _problem(A, R, covariance)
    noise = len(R) * non_negative("noise_variance", noise_variance)
    E = compose(A) - R
    return _excess(E, E @ covariance) + noise


def risk_gradient(A: ArrayLike, R: ArrayLike, covariance: ArrayLike | None = None) -> Floats:
    """Compute df/dA_i = 2 (I + A_(i+1))^T ... (I + A_l)^T E S (I + A_1)^T ... (I + A_(i-1))^T.

    Source: Lemma 2.4 in v3. v1 and v2 print both outer products in reverse order, which is equal for depths 1 and 2 and
    wrong from depth 3 on.

    The arguments are those of `population_risk`. Returns float64 of shape (depth, d, d).
    """
    A, R, covariance = _problem(A, R, covariance)
    return _gradient(A, (compose(A) - R) @ covariance)


def _gradient(A: Floats, ES: Floats) -> Floats:
    Q, P, _ = layer_jacobians(A[:, None], shortcut=True)
    return P.swapaxes(-1, -2) @ (2 * ES) @ Q.swapaxes(-1, -2)


def _excess(E: Floats, ES: Floats) -> float:
    # Rounding errors of a covariance can make the product negative.
    return max(float(np.vdot(E, ES)), 0.0)


@dataclasses.dataclass(frozen=True)
class GradientDominance:
    """Both sides of the gradient dominance inequality (2.3) at a point; see `gradient_dominance`.

    Attributes:
        gradient_norm_squared: ||grad f||_F^2.
        lower_bound: 4 l (1 - tau)^(2l-2) sigma_min(S) (f - C); 0 outside the ball tau < 1.
        per_layer_bound: sum_i 4 prod_{j != i} (1 - ||A_j||)^2 sigma_min(S) (f - C), at least `lower_bound`; 0 outside
            the ball.
        tau: |||A|||.
        excess_risk: f - C.
        inside: True if tau < 1.
        holds: True if both bounds hold up to rounding, which is about d eps times the condition number of S.
    """

    gradient_norm_squared: float
    lower_bound: float
    per_layer_bound: float
    tau: float
    excess_risk: float
    inside: bool
    holds: bool


def gradient_dominance(A: ArrayLike, R: ArrayLike, covariance: ArrayLike | None = None) -> GradientDominance:
    """Evaluate the certificate (2.3): inside the ball |||A||| < 1, a small gradient implies a small excess risk.

        ||grad f||_F^2 >= 4 l (1 - tau)^(2l-2) sigma_min(S) (f(A) - C)

    The bound is tight, with equality at A_i = -tau I, R = (1 - tau)^l I - u v^T, with v the bottom eigenvector of S.
    The norm of each layer in place of the largest one makes it sharper (`per_layer_bound`). tau = 1 must be excluded:
    A_i = -I is critical and not optimal for l >= 2. For a singular S, the smallest non-zero eigenvalue replaces
    sigma_min(S), because directions outside the span of the inputs affect neither risk nor gradient. Directions with a
    variance at rounding level (see `statistics.scaled_root`) do not count in the bounds.
    Source: Eq. 2.3 in v3. The sigma_min(S)^2 of v2 is correct only for sigma_min(S) <= 1 (counterexample d = l = 1,
    A = R = 0, S = 4: 64 < 256). The exponent l - 1 of v1 is wrong even for S = I (l = 3, A_i = -1/2, R = 2:
    2.64 < 10.55).

    The arguments are those of `population_risk`.

    Example:

    >>> certificate = gradient_dominance([[[0.0]]], [[2.0]])
    >>> certificate.gradient_norm_squared, certificate.lower_bound, certificate.holds
    (4.0, 4.0, True)
    """
    A, R, covariance = _problem(A, R, covariance)
    E = compose(A) - R
    ES = E @ covariance
    excess = _excess(E, ES)
    gradient_norm_squared = float(np.linalg.norm(_gradient(A, ES)) ** 2)
    norms = layer_norms(A)
    tau = float(norms.max())
    uniform = per_layer = 0.0
    scales, scaled = scaled_root(covariance)
    root = scales[:, None] * scaled
    rounding = ROUNDING
    if tau < 1 and root.size:
        singular_values = np.linalg.svd(root, compute_uv=False)
        smallest = float(singular_values[-1]) ** 2
        counted = min(float(np.linalg.norm(E @ root) ** 2), excess)
        uniform, per_layer = (float(factor) * smallest * counted for factor in dominance_factors(norms))
        # Relative errors of `scaled`, of `smallest`, and of the gradient, in which ES can cancel.
        condition = np.linalg.cond(scaled) ** 2 + singular_values[0] / singular_values[-1]
        cancellation = np.linalg.norm(np.abs(E) @ np.abs(covariance)) / max(np.linalg.norm(ES), TINY)
        rounding += 4 * len(R) * EPS * float(condition + cancellation)
    holds = gradient_norm_squared >= (1 - rounding) * max(uniform, per_layer) - TINY
    return GradientDominance(gradient_norm_squared, uniform, per_layer, tau, excess, tau < 1, holds)


def dominance_factors(norms: ArrayLike) -> tuple[Floats, Floats]:
    """Compute the factors of sigma_min(S) (f - C) in the two bounds of `gradient_dominance`.

    Args:
        norms: spectral norms of the layers in [0, 1), (..., depth).

    Returns:
        (4 l (1 - max)^(2l-2), 4 sum_i prod_{j != i} (1 - norm_j)^2), each of shape (...).

    Raises:
        ValueError: if a norm is outside [0, 1), or `norms` has no axis.
    """
    norms = real_array("norms", norms, None)
    if norms.ndim == 0 or norms.size == 0 or norms.min() < 0 or norms.max() >= 1:
        raise ValueError(f"Argument `norms` must be an array (..., depth) of numbers in [0, 1). Received: {norms}")
    depth = norms.shape[-1]
    logarithms = 2 * np.log1p(-norms)
    uniform = 4 * depth * np.exp((depth - 1) * logarithms.min(axis=-1))
    per_layer = 4 * np.exp(logarithms.sum(axis=-1, keepdims=True) - logarithms).sum(axis=-1)
    return uniform, per_layer


def _problem(A: ArrayLike, R: ArrayLike, covariance: ArrayLike | None) -> tuple[Floats, Floats, Floats]:
    R = real_array("R", R, ("d", "d"))
    A = real_array("A", A, ("depth", len(R), len(R)))
    return A, R, covariance_matrix("covariance", covariance, len(R))
