"""Loss, gradient and layer Jacobians of n-shortcut linear networks.

Source: Li et al., *Demystifying ResNet*, sections 3 and 4. Their loss ||Y - W X||_F^2 / (2m) depends on the data
only through S_XX, S_YX and tr S_YY. Hardt & Ma's excess risk is 2 (L - L_min) with S_XX = S and S_YX = R S.
"""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf.linear._arguments import Floats, covariance_matrix, non_negative, real_array
from idmatters_tf.linear.network import shortcut_compose


def shortcut_risk(W: ArrayLike, sxx: ArrayLike, syx: ArrayLike, syy_trace: float, *, shortcut: bool = True) -> float:
    """Compute the loss L(W) = ||Y - f(W) X||_F^2 / (2m), with f the end-to-end map.

    It is computed as tr(f S_XX f^T) / 2 - tr(f S_YX^T) + tr(S_YY) / 2. Near an optimum with a small loss, this is a
    difference of large numbers; `Trajectories.excess_risk` of `gradient_descent` is accurate there.
    Source: Li et al., Eq. 6.

    Args:
        W: (units, n, d, d), W[r, 0] is applied first in unit r.
        sxx: X X^T / m, (d, d).
        syx: Y X^T / m, (d, d).
        syy_trace: ||Y||_F^2 / m.
        shortcut: False for a plain network.

    Returns:
        A float.
    """
    W, sxx, syx = problem(W, sxx, syx)
    syy_trace = non_negative("syy_trace", syy_trace)
    f = shortcut_compose(W, shortcut=shortcut)
    return float(np.vdot(f @ sxx, f) / 2 - np.vdot(f, syx) + syy_trace / 2)


def shortcut_gradient(
    W: ArrayLike, sxx: ArrayLike, syx: ArrayLike, syy_trace: float | None = None, *, shortcut: bool = True
) -> Floats:
    """Compute dL/dW_i = P_i^T G Q_i^T with G = f S_XX - S_YX and f = P_i W_i Q_i + const.

    Source: Li et al., Eq. 7, which is minus this times the learning rate.

    The arguments are those of `shortcut_risk`; `syy_trace` is unused and allows unpacking `Statistics`. Returns float64
    of the shape of W.
    """
    W, sxx, syx = problem(W, sxx, syx)
    if syy_trace is not None:
        non_negative("syy_trace", syy_trace)
    Q, P, end_to_end = layer_jacobians(W, shortcut)
    gradient = P.swapaxes(-1, -2) @ (end_to_end @ sxx - syx) @ Q.swapaxes(-1, -2)
    return gradient.reshape(W.shape)


def layer_jacobians(W: Floats, shortcut: bool) -> tuple[Floats, Floats, Floats]:
    """Return (Q, P, f), with f = P_i W_i Q_i + const for each layer i, in the order of application.

    Q and P are the Jacobians before and after each layer, (layers, d, d), and f the map from end to end, (d, d).
    """
    units, n, dim, _ = W.shape
    before = np.empty_like(W)
    after = np.empty_like(W)
    product = np.eye(dim)
    for r in range(units):
        branch = product
        for layer in range(n):
            before[r, layer] = branch
            branch = W[r, layer] @ branch
        product = product + branch if shortcut else branch
    end_to_end = product
    product = np.eye(dim)
    for r in reversed(range(units)):
        branch = product
        for layer in reversed(range(n)):
            after[r, layer] = branch
            branch = branch @ W[r, layer]
        product = product + branch if shortcut else branch
    return before.reshape(-1, dim, dim), after.reshape(-1, dim, dim), end_to_end


def problem(W: ArrayLike, sxx: ArrayLike, syx: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Check the three arguments that all functions have in common."""
    W = real_array("W", W, ("units", "n", "d", "d"))
    dim = W.shape[-1]
    return W, covariance_matrix("sxx", sxx, dim), real_array("syx", syx, (dim, dim))
