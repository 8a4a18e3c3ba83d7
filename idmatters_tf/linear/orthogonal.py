"""Rotations as rotations of planes, and their fractional powers.

A rotation of d coordinates is S D(angles) S^T, where S is orthogonal and D rotates the planes of the coordinates j and
j + d // 2 by their angles. For odd d, D keeps the last coordinate. Powers rotate by multiples of the same angles.
"""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

import numpy as np
import scipy.linalg

from idmatters_tf.linear._arguments import Floats, Integers


def normal_form(N: Floats) -> tuple[Floats, Floats]:
    """Decompose a real normal matrix as S D S^T, with S orthogonal and D block diagonal with blocks of size 1 or 2.

    The blocks of size 2 are [[a, -b], [b, a]] for the complex eigenvalues a +- ib.
    Source: Hardt & Ma, Claim C.1 (all versions). It is the real Schur form, which is block diagonal for normal
    matrices.

    Args:
        N: (d, d), with N N^T = N^T N.

    Returns:
        (S, D), (d, d) each.
    """
    T, S = scipy.linalg.schur(N, output="real")
    D = np.diag(np.diag(T))
    # A subdiagonal entry of LAPACK's result marks a block. All other entries above the diagonal are rounding.
    for i in np.flatnonzero(np.diag(T, -1)):
        b = (T[i + 1, i] - T[i, i + 1]) / 2
        a = (T[i, i] + T[i + 1, i + 1]) / 2
        D[i : i + 2, i : i + 2] = [[a, -b], [b, a]]
    return S, D


def split_rotation(Q: Floats) -> tuple[Floats, Floats, Floats]:
    """Split a rotation into two commuting rotations in one basis: pairs of real eigenvalues -1, and all other angles.

    Hardt & Ma's construction treats them one after the other.

    Args:
        Q: orthogonal matrix with determinant 1, (d, d).

    Returns:
        (basis, angles, half turns): S, (d, d); angles from -pi to pi without the half turns, (d // 2,); angles 0 or
        pi, (d // 2,). The sums of both are the angles of Q.
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
    angles = np.zeros(len(D) // 2)
    half_turns = np.zeros(len(D) // 2)
    angles[: len(starts)] = np.arctan2(D[starts + 1, starts], D[starts, starts])
    half_turns[len(starts) : len(starts) + len(minus) // 2] = np.pi
    return S[:, order], angles, half_turns


def decompose_rotation(Q: Floats) -> tuple[Floats, Floats]:
    """Return the basis (d, d) and the angles (d // 2,) of a rotation; a pair of eigenvalues -1 is a rotation by pi."""
    basis, angles, half_turns = split_rotation(Q)
    return basis, angles + half_turns


def rotate(X: Floats, angles: Floats) -> Floats:
    """Return D(angles) X, the rows of X, (d, columns), rotated plane by plane by the angles, (d // 2,)."""
    cosines = np.cos(angles)[:, None]
    sines = np.sin(angles)[:, None]
    first, second, rest = _planes(X, angles)
    return np.concatenate([cosines * first - sines * second, sines * first + cosines * second, rest])


def rotate_minus_identity(X: Floats, angles: Floats) -> Floats:
    """Return (D(angles) - I) X as `rotate`, without cancellation of cos - 1 at small angles."""
    drops = -2 * np.sin(angles / 2)[:, None] ** 2
    sines = np.sin(angles)[:, None]
    first, second, rest = _planes(X, angles)
    return np.concatenate([drops * first - sines * second, sines * first + drops * second, np.zeros_like(rest)])


def _planes(X: Floats, angles: Floats) -> list[Floats]:
    return np.split(X, [len(angles), 2 * len(angles)])


def _pairs(indices: Integers) -> Integers:
    return indices[: len(indices) // 2 * 2].reshape(-1, 2)
