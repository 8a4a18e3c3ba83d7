"""Rotations inside orthogonal matrices: the real normal form, and fractional powers of rotations.

A rotation of d coordinates is S D(angles) S^T, where S is orthogonal and D rotates the planes of the coordinates j and
j + d // 2 by their angles; with odd d the last coordinate stays. Powers of it rotate by multiples of the same angles.
"""

# pyright: reportConstantRedefinition=false
# Matrices have capital letters, and an argument is checked under its own name.

from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike

from idmatters_tf.linear._arguments import Floats, Integers, real_array, within_float64


class NormalForm(NamedTuple):
    """S D S^T: basis S, orthogonal, and blocks D, block diagonal; (d, d) each."""

    basis: Floats
    blocks: Floats


@within_float64
def normal_form(N: ArrayLike) -> NormalForm:
    """A real normal matrix as S D S^T: S orthogonal, D block diagonal with blocks of size 1 or 2.

    The blocks of size 2 are [[a, -b], [b, a]] for the complex eigenvalues a +- ib.
    Source: Hardt & Ma, Claim C.1 (all versions); it is the real Schur form, which is block diagonal for normal
    matrices.

    Args:
        N: (d, d), with N N^T = N^T N.

    Returns:
        `NormalForm`, (S, D): (d, d) each.

    Raises:
        ValueError: where N is not normal.

    Example:

    >>> S, D = normal_form([[0.0, 2.0], [2.0, 0.0]])
    >>> sorted(np.diag(D).round(12).tolist())
    [-2.0, 2.0]
    """
    N = real_array("N", N, ("d", "d"))
    # In units of the largest entry's power of two, so that no square over- or underflows.
    exponent = np.frexp(np.abs(N).max())[1]
    N = np.ldexp(N, -exponent)
    defect, size = np.linalg.norm(N @ N.T - N.T @ N), np.linalg.norm(N)
    if defect > 1e-10 * size**2:
        raise ValueError(
            f"Argument `N` must be normal: N N^T = N^T N. Received: a matrix that misses it by {defect / size**2:.3g} "
            f"of its squared norm. Use scipy.linalg.schur for a matrix that is not, its form is triangular."
        )
    T, S = scipy.linalg.schur(N, output="real")
    lower = np.diag(T, -1)
    D = np.diag(np.diag(T))
    # Where LAPACK leaves a subdiagonal entry there is a block; all else above the diagonal is rounding.
    for i in np.flatnonzero(lower):
        b = (T[i + 1, i] - T[i, i + 1]) / 2
        a = (T[i, i] + T[i + 1, i + 1]) / 2
        D[i : i + 2, i : i + 2] = [[a, -b], [b, a]]
    return NormalForm(S, np.ldexp(D, exponent))


class Rotation(NamedTuple):
    """S D(angles) S^T. basis: S, (d, d). angles: (d // 2,), each from -pi to pi."""

    basis: Floats
    angles: Floats


class SplitRotation(NamedTuple):
    """rotation: a `Rotation`. half_turns: (d // 2,) angles, 0 or pi, in the same basis."""

    rotation: Rotation
    half_turns: Floats


def split_rotation(Q: ArrayLike) -> SplitRotation:
    """A rotation as two commuting ones in one basis: the pairs of real eigenvalues -1, and all other angles.

    Hardt & Ma's construction treats them one after the other; added, they are the angles of the whole.

    Args:
        Q: (d, d), orthogonal with determinant 1.

    Returns:
        `SplitRotation`; its half turns are not among the angles of its rotation.
    """
    S, D = normal_form(Q)
    starts = np.flatnonzero(np.diag(D, -1))
    in_block = np.zeros(len(D), dtype=bool)
    in_block[starts] = in_block[starts + 1] = True
    diagonal = np.diag(D)
    # The determinant is 1, so the eigenvalues -1 come in pairs, and with odd d an eigenvalue 1 is left for the end.
    minus = np.flatnonzero(~in_block & (diagonal < 0))
    plus = np.flatnonzero(~in_block & (diagonal > 0))
    pairs = np.concatenate([np.column_stack([starts, starts + 1]), _paired(minus), _paired(plus)])
    order = np.concatenate([pairs[:, 0], pairs[:, 1], plus[len(plus) // 2 * 2 :]])
    angles, half_turns = np.zeros(len(D) // 2), np.zeros(len(D) // 2)
    angles[: len(starts)] = np.arctan2(D[starts + 1, starts], D[starts, starts])
    half_turns[len(starts) : len(starts) + len(minus) // 2] = np.pi
    return SplitRotation(Rotation(S[:, order], angles), half_turns)


def rotation_of(Q: ArrayLike) -> Rotation:
    """An orthogonal matrix of determinant 1 as a `Rotation`; a pair of eigenvalues -1 is a rotation by pi.

    Args:
        Q: (d, d).
    """
    rotation, half_turns = split_rotation(Q)
    return Rotation(rotation.basis, rotation.angles + half_turns)


def rotate(X: Floats, angles: Floats) -> Floats:
    """D(angles) X: the rows of X rotated, plane by plane.

    Args:
        X: (d, columns).
        angles: (d // 2,).
    """
    cosines, sines = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second, rest = _planes(X, angles)
    return np.concatenate([cosines * first - sines * second, sines * first + cosines * second, rest])


def rotate_minus_identity(X: Floats, angles: Floats) -> Floats:
    """(D(angles) - I) X, without the cancellation of cos - 1 at small angles.

    Args:
        X: (d, columns).
        angles: (d // 2,).
    """
    drops, sines = -2 * np.sin(angles / 2)[:, None] ** 2, np.sin(angles)[:, None]
    first, second, rest = _planes(X, angles)
    return np.concatenate([drops * first - sines * second, sines * first + drops * second, np.zeros_like(rest)])


def _planes(X: Floats, angles: Floats) -> list[Floats]:
    return np.split(X, [len(angles), 2 * len(angles)])


def _paired(indices: Integers) -> Integers:
    return indices[: len(indices) // 2 * 2].reshape(-1, 2)
