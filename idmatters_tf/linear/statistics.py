"""What a data set is to a linear network: its second moments, its least-squares optimum; whitening and PCA."""

# pyright: reportConstantRedefinition=false
# Matrices have capital letters, and an argument is checked under its own name.

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf.linear.arguments import Floats, covariance_matrix, positive_integer, real_array


class Statistics(NamedTuple):
    """All that the loss ||Y - W X||_F^2 / (2m) depends on (Li et al., Eqs. 6, 8, 9).

    sxx: X X^T / m, (d, d). syx: Y X^T / m, (d, d). syy_trace: ||Y||_F^2 / m, a float.
    """

    sxx: Floats
    syx: Floats
    syy_trace: float


def sufficient_statistics(X: ArrayLike, Y: ArrayLike) -> Statistics:
    """The second moments of a data set. Cost and memory of everything after do not depend on the number of samples.

    Args:
        X: inputs, (d, m), a column for each sample.
        Y: outputs, (d, m).

    Returns:
        `Statistics`, made to be unpacked: `shortcut_risk(W, *sufficient_statistics(X, Y))`.
    """
    X, Y = _pair(X, Y)
    samples = X.shape[1]
    return Statistics(X @ X.T / samples, Y @ X.T / samples, float(np.vdot(Y, Y) / samples))


class Optimum(NamedTuple):
    """The best linear map of a data set. W: (d, d). loss: ||Y - W X||_F^2 / (2m)."""

    W: Floats
    loss: float


def least_squares_optimum(X: ArrayLike, Y: ArrayLike) -> Optimum:
    """The best end-to-end map and the minimum loss, ||Y - W* X||_F^2 / (2m) with W* = Y X^+.

    By least squares on the data: the paper's trace formula on second moments squares the condition number, and its
    loss is a difference of large numbers, which can even come out negative. With rank-deficient inputs W* is the
    solution of the smallest norm.
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


def covariance_root(covariance: Floats) -> Floats:
    """F of shape (d, rank) with F F^T = covariance; eigenvalues that are zero up to rounding are left out.

    Args:
        covariance: (d, d), symmetric positive semidefinite.
    """
    eigenvalues, vectors = np.linalg.eigh(covariance)
    kept = eigenvalues > len(eigenvalues) * np.finfo(np.float64).eps * max(eigenvalues[-1], 0.0)
    return vectors[:, kept] * np.sqrt(eigenvalues[kept])


class Regression(NamedTuple):
    """Second moments as a regression on at most d samples: L(W) - L_min = ||W root - targets||_F^2 / 2.

    root: (d, rank) with root root^T = sxx. targets: W* root, (d, rank).
    """

    root: Floats
    targets: Floats


def regression(sxx: ArrayLike, syx: ArrayLike) -> Regression:
    """The regression on at most d samples that has the same loss, up to its minimum, as the data had.

    Args:
        sxx: (d, d), symmetric positive semidefinite.
        syx: (d, d).

    Raises:
        ValueError: where syx is not of the form W sxx, which no data set gives.
    """
    syx = real_array("syx", syx, ("d", "d"))
    root = covariance_root(covariance_matrix("sxx", sxx, len(syx)))
    targets = np.asarray(np.linalg.lstsq(root, syx.T, rcond=None)[0].T, np.float64)
    if np.abs(targets @ root.T - syx).max() > 1e-7 * max(np.abs(syx).max(), np.finfo(np.float64).tiny):
        raise ValueError(
            "Argument `syx` must vanish where `sxx` does: its rows must lie in the range of `sxx`. Received: rows "
            "outside it, for which the loss has no minimum. Take both from the same data with "
            "`sufficient_statistics`."
        )
    return Regression(root, targets)


class PrincipalComponents(NamedTuple):
    """Data in new coordinates, `coordinates = transform @ (X - mean)`.

    coordinates: (components, m). transform: (components, d). mean: (d, 1).
    """

    coordinates: Floats
    transform: Floats
    mean: Floats


def whiten(
    X: ArrayLike, components: int | None = None, method: Literal["svd", "covariance"] = "svd"
) -> PrincipalComponents:
    """Principal components of the data, scaled to unit variance, so that S_XX = I.

    Source: Li et al., appendix B ("whitened", "10 greatest principal components are kept").

    Args:
        X: (d, m), a column for each sample.
        components: how many to keep, the largest first; all those with a variance above rounding if None.
        method: "svd" of the data, or the eigenvectors of their "covariance": a tenth of the time for many samples, but
            directions whose standard deviation is below 1e-8 of the largest are lost in rounding.

    Returns:
        `PrincipalComponents`, (whitened, transform, mean), with `whitened = transform @ (X - mean)`.

    Raises:
        ValueError: where the data have fewer components than asked for.
    """
    (coordinates, directions, mean), variances = _principal_components(X, components, method)
    scale = np.sqrt(variances)
    return PrincipalComponents(coordinates / scale, directions / scale, mean)


def principal_components(
    X: ArrayLike, components: int | None = None, method: Literal["svd", "covariance"] = "svd"
) -> PrincipalComponents:
    """The data in the coordinates of their principal components, the largest variance first.

    Args and errors: as `whiten`.

    Returns:
        `PrincipalComponents`, (coordinates, directions, mean); the directions are orthonormal rows.
    """
    return _principal_components(X, components, method)[0]


def _principal_components(X: ArrayLike, components: int | None, method: str) -> tuple[PrincipalComponents, Floats]:
    """The components, and their variances (components, 1)."""
    X = real_array("X", X, ("d", "m"))
    mean = X.mean(axis=1, keepdims=True)
    centred = X - mean
    eps, tiny = np.finfo(np.float64).eps, np.finfo(np.float64).tiny
    if method == "svd":
        vectors, singular_values, _ = np.linalg.svd(centred, full_matrices=False)
        scale = max(np.abs(X).max() * np.sqrt(X.size), tiny)
        available = int(np.count_nonzero(singular_values > max(X.shape) * eps * scale))
        directions = vectors.T[: _checked_components(components, available)]
        coordinates = directions @ centred
        return PrincipalComponents(coordinates, directions, mean), np.mean(coordinates**2, axis=1, keepdims=True)
    if method != "covariance":
        raise ValueError(f"Argument `method` must be 'svd' or 'covariance'. Received: method={method!r}")
    values, vectors = np.linalg.eigh(centred @ centred.T / X.shape[1])
    scale = max(float(np.abs(X).max()) ** 2 * len(X), tiny)
    available = int(np.count_nonzero(values > max(X.shape) * eps * scale))
    kept = _checked_components(components, available)
    columns = vectors[:, ::-1][:, :kept]
    # Definite signs, so that the result does not depend on the LAPACK at hand.
    columns = columns * np.sign(columns[np.abs(columns).argmax(axis=0), np.arange(kept)])
    return PrincipalComponents(columns.T @ centred, columns.T, mean), values[::-1][:kept, None]


def _checked_components(components: int | None, available: int) -> int:
    components = available if components is None else positive_integer("components", components)
    if components > available or available == 0:
        raise ValueError(
            f"Argument `components` must be at most the rank of the centred data, {available}. Received: "
            f"components={components}. Ask for fewer, or pass more varied data."
        )
    return components


def _pair(X: ArrayLike, Y: ArrayLike) -> tuple[Floats, Floats]:
    X = real_array("X", X, ("d", "m"))
    Y = real_array("Y", Y, ("outputs", "m"))
    if X.shape[1] != Y.shape[1]:
        raise ValueError(
            f"Arguments `X` and `Y` must have a column for each sample. Received: shapes {X.shape} and {Y.shape}. "
            f"Transpose data with a row for each sample."
        )
    return X, Y
