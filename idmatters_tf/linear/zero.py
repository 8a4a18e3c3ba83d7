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


def zero_hessian_spectrum(units: int, n: int, sxx: ArrayLike, syx: ArrayLike, *, slope: float = 1.0) -> Floats:
    """Compute all eigenvalues of the Hessian at W = 0.

    With G = S_XX - S_YX:

    - n = 1: the Hessian is block Toeplitz, with S_XX on the diagonal and V -> G V^T + V S_XX below it. The eigenvalues
      are computed from the dense matrix.
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
    units = positive_integer("units", units)
    n = positive_integer("n", n)
    slope = float(real_array("slope", slope, ()))
    if n == 1:
        sxx, syx = _moments(sxx, syx)
        if slope != 1.0:
            raise ValueError(
                f"Argument `slope` is for n = 2; for n = 1 the spectrum also depends on second derivatives of the "
                f"activations. Received: slope={slope}, n=1"
            )
        hessian = shortcut_hessian(np.zeros((units, 1, *sxx.shape)), sxx, syx)
        return np.asarray(np.linalg.eigvalsh(hessian), np.float64)
    syx = real_array("syx", syx, ("d", "d"))
    sxx = real_array("sxx", sxx, syx.shape)
    if n > 2:
        return np.zeros(units * n * syx.size)
    singular_values = np.abs(slope) * np.linalg.svd(sxx - syx, compute_uv=False)
    return np.sort(np.repeat(np.concatenate([singular_values, -singular_values]), units * len(syx)))


def _moments(sxx: ArrayLike, syx: ArrayLike) -> tuple[Floats, Floats]:
    syx = real_array("syx", syx, ("d", "d"))
    return covariance_matrix("sxx", sxx, len(syx)), syx
