"""Order of stationarity and Hessian spectrum of n-shortcut networks at zero.

Source: Li et al., *Demystifying ResNet*, Theorem 1 and appendix A.
"""

import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf._arguments import positive_integer
from idmatters_tf.linear._arguments import Floats, covariance_matrix, real_array
from idmatters_tf.linear.hessian import shortcut_hessian


def zero_stationary_order(shortcut_depth: int, sxx: ArrayLike, syx: ArrayLike) -> int:
    """Return the order k of the stationary point at zero, where the first non-zero derivative has order k + 1.

    With n the depth of the shortcuts, it is n - 1 in general (0 for n = 1, where zero is not stationary), and 2n - 1 if
    G = S_XX - S_YX is zero, in which case zero is optimal.
    Source: Li et al., Definition 4 and Theorem 1, which omits the case G = 0.

    Args:
        shortcut_depth: n.
        sxx: (d, d).
        syx: (d, d).
    """
    sxx, syx = _moments(sxx, syx)
    vanishes = np.abs(sxx - syx).max() <= 1e-12 * max(np.abs(sxx).max(), np.abs(syx).max())
    return positive_integer("shortcut_depth", shortcut_depth) * (2 if vanishes else 1) - 1


def zero_hessian_spectrum(units: int, n: int, sxx: ArrayLike, syx: ArrayLike, slope: float = 1.0) -> Floats:
    """Compute all eigenvalues of the Hessian at W = 0.

    With G = S_XX - S_YX:

    - n = 1: the Hessian is block Toeplitz, with S_XX on the diagonal and V -> G V^T + V S_XX below it. If S_XX and G
      are symmetric and commute, with eigenvalues s_a and g_a, it decomposes into pairs of coordinates with an explicit
      spectrum: (s_a + g_a) R - g_a and R - 1 times -g_a for each a, and one matrix of size 2R for each pair a < b,
      see `_pair_spectrum`. Otherwise the eigenvalues are computed from the dense matrix.
    - n = 2: +-slope * sigma_i(G), each with multiplicity units * d. The condition number does not depend on the depth,
      and half of the eigenvalues are negative if G is non-singular.
    - n >= 3: zero.

    Source: Li et al., Theorem 1 and Eq. 22. For n = 1 they give only the block structure.

    Args:
        units: R.
        n: depth of the shortcuts.
        sxx: (d, d). With an activation before the first layer, S_{X pre(X)} (n = 2).
        syx: (d, d). With an activation before the first layer, S_{Y pre(X)} (n = 2).
        slope: mid'(0) * post'(0), for n = 2 with activations in these places. ReLU has no slope at zero: 1/2 is a
            choice, and automatic differentiation uses 0.

    Returns:
        Ascending eigenvalues, (units * n * d^2,) float64.
    """
    units, n = positive_integer("units", units), positive_integer("n", n)
    slope = float(real_array("slope", slope, ()))
    if n == 1:
        sxx, syx = _moments(sxx, syx)
        if slope != 1.0:
            raise ValueError(
                f"Argument `slope` is for n = 2; for n = 1 the spectrum also depends on second derivatives of the "
                f"activations. Received: slope={slope}, n=1"
            )
        return _one_shortcut_spectrum(units, sxx, syx)
    syx = real_array("syx", syx, ("d", "d"))
    sxx = real_array("sxx", sxx, syx.shape)
    if n > 2:
        return np.zeros(units * n * syx.size)
    singular_values = np.abs(slope) * np.linalg.svd(sxx - syx, compute_uv=False)
    return np.sort(np.repeat(np.concatenate([singular_values, -singular_values]), units * len(syx)))


def _one_shortcut_spectrum(units: int, sxx: Floats, syx: Floats) -> Floats:
    G = sxx - syx
    # In units of the largest entry, to avoid overflow and underflow of products.
    unit = max(np.abs(sxx).max(), np.abs(G).max(), 1e-300)
    commute = np.allclose((sxx / unit) @ (G / unit), (G / unit) @ (sxx / unit), rtol=0, atol=1e-12)
    if not (commute and np.allclose(G, G.T, rtol=0, atol=1e-12 * np.abs(G).max())):
        d = len(sxx)
        return np.asarray(np.linalg.eigvalsh(shortcut_hessian(np.zeros((units, 1, d, d)), sxx, syx)), np.float64)
    # A generic combination has the common eigenvectors even if one matrix has multiple eigenvalues.
    _, vectors = np.linalg.eigh(G / max(np.abs(G).max(), 1e-300) + np.sqrt(0.5) * sxx / max(np.abs(sxx).max(), 1e-300))
    s, g = (np.diag(vectors.T @ matrix @ vectors) for matrix in (sxx, G))
    parts = [np.append(np.full(units - 1, -g_a), (s_a + g_a) * units - g_a) for s_a, g_a in zip(s, g, strict=True)]
    parts += [_pair_spectrum(units, s[[a, b]], g[[a, b]]) for a in range(len(s)) for b in range(a + 1, len(s))]
    return np.sort(np.concatenate(parts))


def _pair_spectrum(units: int, s: Floats, g: Floats) -> Floats:
    """Compute the eigenvalues on the coordinates (a, b) and (b, a) of all units, (2 * units,).

    V S_XX has the entries v_ab s_b and v_ba s_a; G V^T has g_a v_ba and g_b v_ab.
    """
    diagonal = np.diag(s[::-1])
    below = diagonal + np.array([[0.0, g[0]], [g[1], 0.0]])
    lower = np.tril(np.ones((units, units)), -1)
    matrix = np.kron(np.eye(units), diagonal) + np.kron(lower, below) + np.kron(lower.T, below.T)
    return np.asarray(np.linalg.eigvalsh(matrix), np.float64)


def _moments(sxx: ArrayLike, syx: ArrayLike) -> tuple[Floats, Floats]:
    syx = real_array("syx", syx, ("d", "d"))
    return covariance_matrix("sxx", sxx, len(syx)), syx
