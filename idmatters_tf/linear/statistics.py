"""Second moments and least-squares optima of data sets, whitening, and principal components."""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf._arguments import positive_integer
from idmatters_tf.linear._arguments import Floats, covariance_matrix, real_array

EPS = float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).tiny)


class Statistics(NamedTuple):
    """Sufficient statistics of the loss ||Y - W X||_F^2 / (2m) (Li et al., Eqs. 6, 8, 9).

    sxx: X X^T / m, (d, d). syx: Y X^T / m, (d, d). syy_trace: ||Y||_F^2 / m, a float.
    """

    sxx: Floats
    syx: Floats
    syy_trace: float


def sufficient_statistics(X: ArrayLike, Y: ArrayLike) -> Statistics:
    """Compute the second moments of a data set, whose size does not depend on the number of samples.

    Args:
        X: inputs, (d, m), one column per sample.
        Y: outputs, (d, m).

    Returns:
        `Statistics`, which can be unpacked: `shortcut_risk(W, *sufficient_statistics(X, Y))`.
    """
    X, Y = _pair(X, Y)
    samples = X.shape[1]
    return Statistics(X @ X.T / samples, Y @ X.T / samples, float(np.vdot(Y, Y) / samples))


class Optimum(NamedTuple):
    """Optimal linear map of a data set. W: (d, d). loss: ||Y - W X||_F^2 / (2m)."""

    W: Floats
    loss: float


def least_squares_optimum(X: ArrayLike, Y: ArrayLike) -> Optimum:
    """Compute the optimal end-to-end map W* = Y X^+ and the minimum loss ||Y - W* X||_F^2 / (2m).

    The solution uses least squares on the data. The paper's trace formula on second moments squares the condition
    number, and its loss is a difference of large numbers, which can be negative. For rank-deficient inputs W* is the
    solution of smallest norm.
    Source: Li et al., *Demystifying ResNet*, Eqs. 15 and 16.

    Args:
        X: inputs, (d, m).
        Y: outputs, (d, m).

    Returns:
        `Optimum`, (W, loss).
    """
    X, Y = _pair(X, Y)
    W = np.asarray(np.linalg.lstsq(X.T, Y.T, rcond=None)[0].T, np.float64)
    return Optimum(W, float(np.linalg.norm(Y - W @ X) ** 2 / (2 * X.shape[1])))


def scaled_root(covariance: Floats) -> tuple[Floats, Floats]:
    """Return a root scales[:, None] * root of a covariance, without directions whose variance is at rounding level.

    The coordinates are first divided by powers of two to variances near 1, without rounding, to treat small and large
    coordinates equally. In these units, a direction is dropped if its variance is at most d eps times the largest:
    rounding errors of the entries, such as those of X X^T / m, could make it zero or negative. diag(1, 1e-30) loses no
    direction, and [[1, 1], [1, 1 + 1e-16]] loses one.

    Args:
        covariance: symmetric positive semidefinite matrix, (d, d).

    Returns:
        (scales, root): powers of two, (d,), and a matrix with orthogonal columns, (d, rank).
    """
    variances = np.diag(covariance)
    scales = np.ldexp(1.0, np.frexp(variances)[1] // 2)
    # A coordinate without variance gets the largest scale.
    scales[variances <= 0] = scales[variances > 0].max(initial=TINY)
    eigenvalues, vectors = np.linalg.eigh(covariance / scales / scales[:, None])
    if eigenvalues[0] < -1e-10 * eigenvalues[-1]:
        # Semidefinite only up to rounding of its largest entries, which requires a common scale.
        scales[:] = scales.max()
        eigenvalues, vectors = np.linalg.eigh(covariance / scales / scales[:, None])
    kept = eigenvalues > len(eigenvalues) * EPS * max(eigenvalues[-1], 0.0)
    return scales, vectors[:, kept] * np.sqrt(eigenvalues[kept])


def regression(sxx: ArrayLike, syx: ArrayLike) -> tuple[Floats, Floats]:
    """Return a regression on at most d samples: L(W) - L_min = ||W root - targets||_F^2 / 2.

    Second moments of data have rounding errors. Directions whose variance is at most d eps of the largest, in units in
    which every coordinate has a variance near 1, are dropped (`scaled_root`).

    Args:
        sxx: symmetric positive semidefinite matrix, (d, d).
        syx: (d, d).

    Returns:
        (root, targets), (d, rank) each, with root root^T = sxx and targets = W* root.

    Raises:
        ValueError: if syx is not of the form W sxx, which is impossible for second moments of data.
    """
    syx = real_array("syx", syx, ("d", "d"))
    scales, root = scaled_root(covariance_matrix("sxx", sxx, len(syx)))
    scaled = syx / scales
    targets = np.asarray(np.linalg.lstsq(root, scaled.T, rcond=None)[0].T, np.float64)
    if np.abs(targets @ root.T - scaled).max() > 1e-7 * max(np.abs(scaled).max(), TINY):
        raise ValueError(
            "Argument `syx` must have rows in the range of `sxx`. Received: rows outside it, for which the loss has no "
            "minimum. Compute both from the same data with `sufficient_statistics`."
        )
    return scales[:, None] * root, targets


class PrincipalComponents(NamedTuple):
    """Data in coordinates of principal components, `coordinates = transform @ (X - mean)`.

    coordinates: (components, m). transform: (components, d). mean: (d, 1).
    """

    coordinates: Floats
    transform: Floats
    mean: Floats


def whiten(X: ArrayLike, components: int) -> PrincipalComponents:
    """Compute principal components of the data scaled to unit variance, with S_XX = I.

    They are eigenvectors of the covariance, which takes a tenth of the time of a singular value decomposition of the
    data but loses directions whose standard deviation is below 1e-8 of the largest.
    Source: Li et al., appendix B ("whitened", "10 greatest principal components are kept").

    Args:
        X: (d, m), one column per sample.
        components: number of components to keep, the largest first.

    Returns:
        `PrincipalComponents`, (whitened, transform, mean), with `whitened = transform @ (X - mean)`.

    Raises:
        ValueError: if the data have fewer than `components` components, i.e. variances above n eps d max |X|^2, with n
            the larger of d and m and eps = 2.2e-16.
    """
    X = real_array("X", X, ("d", "m"))
    components = positive_integer("components", components)
    # A power of two keeps the squares in range without rounding errors.
    scale = math.ldexp(1.0, math.frexp(np.abs(X).max())[1] - 1)
    X = X / scale
    mean = X.mean(axis=1, keepdims=True)
    centered = X - mean
    values, vectors = np.linalg.eigh(centered @ centered.T / centered.shape[1])
    rounding = max(centered.shape) * EPS * max(float(np.abs(X).max()) ** 2 * len(centered), TINY)
    available = int(np.count_nonzero(values > rounding))
    if components > available:
        raise ValueError(
            f"Argument `components` must be at most the rank of the centered data, {available}. Received: "
            f"components={components}"
        )
    columns = vectors[:, ::-1][:, :components]
    # Fixed signs make the result independent of the LAPACK implementation.
    columns = columns * np.sign(columns[np.abs(columns).argmax(axis=0), np.arange(components)])
    directions = columns.T / np.sqrt(values[::-1][:components, None])
    return PrincipalComponents(directions @ centered, directions / scale, mean * scale)


def _pair(X: ArrayLike, Y: ArrayLike) -> tuple[Floats, Floats]:
    X = real_array("X", X, ("d", "m"))
    Y = real_array("Y", Y, ("outputs", "m"))
    if X.shape[1] != Y.shape[1]:
        raise ValueError(
            f"Arguments `X` and `Y` must have one column per sample. Received: shapes {X.shape} and {Y.shape}. "
            f"Transpose data with one row per sample."
        )
    return X, Y
