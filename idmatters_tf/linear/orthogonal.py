"""Real normal form of normal matrices, and fractional powers of rotations.

A rotation of d coordinates is S D(angles) S^T, where S is orthogonal and D rotates the planes of the coordinates j and
j + d // 2 by their angles. For odd d, D keeps the last coordinate. Powers rotate by multiples of the same angles.
"""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike

from idmatters_tf.linear._arguments import Floats, Integers, real_array


class NormalForm(NamedTuple):
    """Normal form S D S^T: orthogonal basis S and block diagonal D, (d, d) each."""

    basis: Floats
    blocks: Floats


def normal_form(N: ArrayLike) -> NormalForm:
    """Decompose a real normal matrix as S D S^T, with S orthogonal and D block diagonal with blocks of size 1 or 2.

    The blocks of size 2 are [[a, -b], [b, a]] for the complex eigenvalues a +- ib.
    Source: Hardt & Ma, Claim C.1 (all versions). It is the real Schur form, which is block diagonal for normal
    matrices.

    Args:
        N: (d, d), with N N^T = N^T N.

    Returns:
        `NormalForm`, (S, D), (d, d) each.

    Raises:
        ValueError: if N is not normal.

    Example:

    >>> S, D = normal_form([[0.0, 2.0], [2.0, 0.0]])
    >>> sorted(np.diag(D).round(12).tolist())
    [-2.0, 2.0]
    """
    N = real_array("N", N, ("d", "d"))
    # Squares of large and small numbers are out of range.
    scaled = N / (np.abs(N).max() or 1.0)
    defect, size = np.linalg.norm(scaled @ scaled.T - scaled.T @ scaled), np.linalg.norm(scaled)
    if defect > 1e-10 * size**2:
        raise ValueError(
            f"Argument `N` must be normal, N N^T = N^T N. Received: a matrix with a relative defect of "
            f"{defect / size**2:.3g}. Use scipy.linalg.schur for other matrices."
        )
    T, S = scipy.linalg.schur(N, output="real")
    lower = np.diag(T, -1)
    D = np.diag(np.diag(T))
    # A subdiagonal entry of LAPACK's result marks a block. All other entries above the diagonal are rounding.
    for i in np.flatnonzero(lower):
        b = (T[i + 1, i] - T[i, i + 1]) / 2
        a = (T[i, i] + T[i + 1, i + 1]) / 2
        D[i : i + 2, i : i + 2] = [[a, -b], [b, a]]
    return NormalForm(S, D)


class Rotation(NamedTuple):
    """Rotation S D(angles) S^T. basis: S, (d, d). angles: from -pi to pi, (d // 2,)."""

    basis: Floats
    angles: Floats


class SplitRotation(NamedTuple):
    """Rotation and half turns. rotation: a `Rotation`. half_turns: angles 0 or pi in the same basis, (d // 2,)."""

    rotation: Rotation
    half_turns: Floats


def split_rotation(Q: ArrayLike) -> SplitRotation:
    """Split a rotation into two commuting rotations in one basis: pairs of real eigenvalues -1, and all other angles.

    Hardt & Ma's construction treats them one after the other. The sums are the angles of Q.

    Args:
        Q: orthogonal matrix with determinant 1, (d, d).

    Returns:
        `SplitRotation`, in which the angles of the rotation do not include the half turns.
    """
    S, D = normal_form(Q)
    starts = np.flatnonzero(np.diag(D, -1))
    in_block = np.zeros(len(D), dtype=bool)
    in_block[starts] = in_block[starts + 1] = True
    diagonal = np.diag(D)
    # The determinant is 1. Eigenvalues -1 therefore form pairs, and for odd d an eigenvalue 1 remains for the end.
    minus = np.flatnonzero(~in_block & (diagonal < 0))
    plus = np.flatnonzero(~in_block & (diagonal > 0))
    pairs = np.concatenate([np.column_stack([starts, starts + 1]), _pairs(minus), _pairs(plus)])
    order = np.concatenate([pairs[:, 0], pairs[:, 1], plus[len(plus) // 2 * 2 :]])
    angles, half_turns = np.zeros(len(D) // 2), np.zeros(len(D) // 2)
    angles[: len(starts)] = np.arctan2(D[starts + 1, starts], D[starts, starts])
    half_turns[len(starts) : len(starts) + len(minus) // 2] = np.pi
    return SplitRotation(Rotation(S[:, order], angles), half_turns)


def decompose_rotation(Q: ArrayLike) -> Rotation:
    """Return an orthogonal matrix of determinant 1 as a `Rotation`; a pair of eigenvalues -1 is a rotation by pi.

    Args:
        Q: (d, d).
    """
    rotation, half_turns = split_rotation(Q)
    return Rotation(rotation.basis, rotation.angles + half_turns)


def rotate(X: Floats, angles: Floats) -> Floats:
    """Return D(angles) X, the rows of X rotated plane by plane.

    Args:
        X: (d, columns).
        angles: (d // 2,).
    """
    cosines, sines = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second, rest = _planes(X, angles)
    return np.concatenate([cosines * first - sines * second, sines * first + cosines * second, rest])


def rotate_minus_identity(X: Floats, angles: Floats) -> Floats:
    """Return (D(angles) - I) X, without cancellation of cos - 1 at small angles.

    Args:
        X: (d, columns).
        angles: (d // 2,).
    """
    drops, sines = -2 * np.sin(angles / 2)[:, None] ** 2, np.sin(angles)[:, None]
    first, second, rest = _planes(X, angles)
    return np.concatenate([drops * first - sines * second, sines * first + drops * second, np.zeros_like(rest)])


def _planes(X: Floats, angles: Floats) -> list[Floats]:
    return np.split(X, [len(angles), 2 * len(angles)])


def _pairs(indices: Integers) -> Integers:
    return indices[: len(indices) // 2 * 2].reshape(-1, 2)
