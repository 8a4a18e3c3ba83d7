"""Operator angle: the largest angle between a vector and its image."""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

import numpy as np
import scipy.optimize

from idmatters_tf.linear._arguments import Floats

# Number of grid points of the parameter. A coarse grid can miss the minimum (observed at 5 points, not at 9).
GRID = 17


def operator_angle(R: Floats) -> float:
    """Compute the largest angle between x and R x, in [0, pi]; its cosine is the first antieigenvalue of R.

    cos = min_x x^T H x / ||R x|| over unit vectors, with H the symmetric part of R. For each t > 0,
    ||R x|| <= (t + ||R x||^2 / t) / 2, with equality at t = ||R x||. The quotient therefore belongs to the pencil
    (2 H, t I + R^T R / t), whose bottom eigenvalue is extremal over t at the antieigenvalue (the joint range of two
    quadratic forms on the sphere is convex from d = 3 on: Brickman, 1961). The result is the angle of an explicit
    vector and, up to rounding, not above the true angle.
    Source: Gustafson, *Antieigenvalues* (1994), for the definition.

    Args:
        R: non-singular matrix, (d, d).

    Returns:
        Angle in radians, a float.

    Example: for a symmetric positive definite matrix it depends only on the condition number,
    cos = 2 sqrt(kappa) / (1 + kappa).

    >>> round(float(np.cos(operator_angle(np.diag([4.0, 1.0])))), 12)
    0.8
    """
    if len(R) == 1:
        return 0.0 if R[0, 0] > 0 else float(np.pi)
    # The angle does not depend on the scale, but the squares below do.
    R = R / np.abs(R).max()
    eigenvalues, eigenvectors = (np.asarray(part, np.complex128) for part in np.linalg.eig(R))
    negative = (eigenvalues.imag == 0) & (eigenvalues.real < 0)
    if negative.any():
        return _angle(R, eigenvectors[:, np.argmax(negative)].real)
    # In the basis of the right singular vectors, t I + R^T R / t is diagonal and can be inverted at any condition.
    U, singular_values, Vt = np.linalg.svd(R)
    image = Vt @ U * singular_values

    def bottom(log_t: float) -> tuple[Floats, Floats]:
        """Return the eigenvalues of the pencil in ascending order, and its eigenvectors."""
        t = np.exp(log_t)
        roots = np.sqrt(t + singular_values**2 / t)
        values, vectors = np.linalg.eigh((image + image.T) / roots / roots[:, None])
        return values, vectors / roots[:, None]

    # A form with negative values is minimized over both t and x. Otherwise t maximizes (a saddle point).
    sign = 1 if np.linalg.eigvalsh(image + image.T)[0] < 0 else -1
    low = float(np.log(singular_values[-1]))
    high = float(np.log(singular_values[0]))
    grid: list[float] = np.linspace(low, high, GRID).tolist()
    values = [sign * bottom(log_t)[0][0] for log_t in grid]
    best = int(np.argmin(values))
    bracket = grid[max(best - 1, 0)], grid[min(best + 1, GRID - 1)]
    log_t = scipy.optimize.minimize_scalar(
        lambda log_t: sign * bottom(log_t)[0][0], bounds=bracket, method="bounded", options={"xatol": 1e-9}
    ).x
    # At a saddle point two eigenvalues coincide, and the solution is a combination of their eigenvectors.
    # In the norm of the pencil they have equal lengths, whatever the condition number.
    return _largest_angle_in_plane(image, *bottom(log_t)[1][:, :2].T)


def _largest_angle_in_plane(R: Floats, first: Floats, second: Floats) -> float:
    def vector(mixing: float) -> Floats:
        return np.cos(mixing) * first + np.sin(mixing) * second

    mixings = np.linspace(0, np.pi, 181)
    best = mixings[np.argmax([_angle(R, vector(mixing)) for mixing in mixings])]
    step = mixings[1]
    refined = scipy.optimize.minimize_scalar(
        lambda mixing: -_angle(R, vector(mixing)), bounds=(best - step, best + step), method="bounded"
    )
    return max(-refined.fun, _angle(R, vector(best)))


def _angle(R: Floats, x: Floats) -> float:
    image = R @ x
    x = x / np.linalg.norm(x)
    image = image / np.linalg.norm(image)
    # Kahan's formula is accurate near 0 and pi, unlike the arc cosine.
    return float(2 * np.arctan2(np.linalg.norm(x - image), np.linalg.norm(x + image)))
