"""Global optima of small norm: factorizations of R into factors near the identity.

Source: Hardt & Ma, *Identity Matters in Deep Learning*, Theorem 2.1 and appendix A. v1 is the ICLR submission, v2 and
v3 are the arXiv versions. v1 states the theorem without det R > 0, which is false (d = 1, R = -1).
"""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

import dataclasses
import math
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike

from idmatters_tf._arguments import check_choice, positive_integer
from idmatters_tf.linear._arguments import Floats, real_array
from idmatters_tf.linear.network import compose
from idmatters_tf.linear.orthogonal import decompose_rotation, rotate, rotate_minus_identity, split_rotation


def factorize(
    R: ArrayLike,
    depth: int,
    method: Literal["polar", "paper", "log", "psd"] = "polar",
    on_negative_determinant: Literal["raise", "augment"] = "raise",
) -> Floats:
    """Compute A with (I + A_l) ... (I + A_1) = R and small layers.

    Methods:
        "polar": R = Q P, Q a rotation, P positive definite, and I + A_i = Q^(i/l) P^(1/l) Q^(-(i-1)/l). The product
            telescopes for every depth. All layers have the same norm ||Q^(1/l) P^(1/l) - I||, at most
            2 sin(theta / 2l) + max_j |k_j^(1/l) - 1|, with theta the largest angle of Q and k_j the singular values of
            R. It is not in the paper. Its norm is at most 0.4 of the bound where the theorem applies, and 1.02 (median;
            at worst 1.18) of the smallest norm that a local search found for 60 random R with d = 2 and 3 at depths 2
            to 5 (benchmarks/factorize_optimum.py).
        "paper": the construction of the theorem's proof (v3): R = U K V^T, with V^T and U in 2q factors each and K in
            p, p + 4q = l. p and q are rounded to integers, with which the norm exceeds the theorem's bound at many
            depths. Requires depth 5 or more.
        "log": I + A_i = exp(log(R) / l), with the principal logarithm. Often far from the smallest norm, and undefined
            for negative eigenvalues.
        "psd": I + A_i = R^(1/l), for symmetric positive definite R (special case of the theorem, bound 3 gamma / l).

    Args:
        R: (d, d), det R > 0.
        depth: l, a positive integer.
        method: see above.
        on_negative_determinant: "raise", or "augment" to factorize diag(R, -1), see `augment`.

    Returns:
        (depth, d, d) float64, or (depth, d+1, d+1) if R was augmented. `compose` returns R with a relative error of
        about 1e-16 times the depth. For ||R|| far below 1, the factors I + A_i are small differences and the error is
        larger by about 1 / ||R||^(1/depth): 3e-12 to 8e-10 for orthogonal matrices of 2 to 5 rows times 1e-150 at
        depth 40.

    Raises:
        ValueError: for singular R (every factorization has norm 1 or more), for det R < 0, if the method does not
            apply, and if the relative error would exceed 1e-6.

    Example:

    >>> factorize([[4.0]], 2)
    array([[[1.]],
    <BLANKLINE>
           [[1.]]])
    """
    R = real_array("R", R, ("d", "d"))
    depth = positive_integer("depth", depth)
    check_choice("method", method, list(METHODS))
    check_choice("on_negative_determinant", on_negative_determinant, ("raise", "augment"))
    if on_negative_determinant == "augment" and _determinant_sign(_singular_value_decomposition(R)) < 0:
        R = augment(R)
    decomposition = _singular_value_decomposition(R)
    _require_positive_determinant(decomposition)
    A = (R - np.eye(len(R)))[None] if depth == 1 else METHODS[method](R, depth, decomposition)
    size = decomposition.singular_values[0]
    # The negation includes NaN.
    if not (error := np.abs(compose(A) - R).max() / size) <= 1e-6:
        raise ValueError(
            f"Argument `depth` must be larger, or `R` scaled to norm 1, because factors I + A_i of norm "
            f"||R||^(1/depth) lose their digits. Received: depth={depth}, ||R||={size:.3g}, relative error {error:.2g}."
        )
    return A


@dataclasses.dataclass(frozen=True)
class FactorizationBounds:
    """Bounds on |||A||| for factorizations of R; see `factorization_bounds`.

    Attributes:
        theorem: (4 pi + 3 gamma) / l, the bound of Theorem 2.1 for l >= 3 gamma.
        theorem_applies: True if l >= 3 gamma.
        polar: 2 sin(theta / 2l) + max_j |k_j^(1/l) - 1|, an upper bound for `factorize`.
        lower: max(sigma_max^(1/l) - 1, 1 - sigma_min^(1/l), sin(phi / l)), a lower bound for every factorization, with
            phi the largest argument of an eigenvalue of R.
        gamma: max(|log sigma_max(R)|, |log sigma_min(R)|).
    """

    theorem: float
    theorem_applies: bool
    polar: float
    lower: float
    gamma: float


def factorization_bounds(R: ArrayLike, depth: int) -> FactorizationBounds:
    """Compute bounds on the norm of the best factorization: the theorem's, that of `factorize`, and a lower bound.

    The lower bound holds because a layer of norm tau multiplies lengths by at most 1 + tau and at least 1 - tau, and
    rotates a vector by at most arcsin(tau) if tau < 1. With an eigenvalue of argument phi, R rotates some vector by phi
    or more.

    Args:
        R: (d, d), det R > 0.
        depth: l.

    Returns:
        `FactorizationBounds`.
    """
    R = real_array("R", R, ("d", "d"))
    depth = positive_integer("depth", depth)
    decomposition = _singular_value_decomposition(R)
    _require_positive_determinant(decomposition)
    U, singular_values, Vt = decomposition
    logarithms = np.log(singular_values)
    gamma = float(np.abs(logarithms).max())
    theta = float(np.abs(decompose_rotation(U @ Vt)[1]).max(initial=0.0))
    stretch = np.abs(np.expm1(logarithms / depth))
    # Beyond a right angle per layer, norm 1 is not sufficient for the rotation.
    eigenvalues = np.asarray(np.linalg.eigvals(R / singular_values[0]), np.complex128)
    phi = float(np.abs(np.arctan2(eigenvalues.imag, eigenvalues.real)).max())
    rotating = math.sin(min(phi / depth, math.pi / 2))
    return FactorizationBounds(
        theorem=(4 * math.pi + 3 * gamma) / depth,
        theorem_applies=depth >= 3 * gamma,
        polar=2 * math.sin(theta / (2 * depth)) + float(stretch.max()),
        lower=max(math.expm1(logarithms[0] / depth), -math.expm1(logarithms[-1] / depth), rotating),
        gamma=gamma,
    )


def augment(R: ArrayLike) -> Floats:
    """Return diag(R, -1), which flips the sign of the determinant with one more coordinate and keeps gamma.

    The data get a coordinate b, and the labels -b. Source: Hardt & Ma, after Theorem 2.1 (v2, v3).

    Args:
        R: (d, d).

    Returns:
        (d+1, d+1).
    """
    return scipy.linalg.block_diag(real_array("R", R, ("d", "d")), np.array([[-1.0]]))


class _Decomposition(NamedTuple):
    """Singular value decomposition R = U diag(singular_values) Vt, with descending singular values."""

    U: Floats
    singular_values: Floats
    Vt: Floats


def _singular_value_decomposition(R: Floats) -> _Decomposition:
    U, singular_values, Vt = np.linalg.svd(R)
    if singular_values[-1] <= len(R) * np.finfo(np.float64).eps * singular_values[0]:
        raise ValueError(
            f"Argument `R` must be non-singular, because every factorization has a layer of norm 1 or more otherwise. "
            f"Received: singular values from {singular_values[-1]:.3g} to {singular_values[0]:.3g}. Add a small "
            f"multiple of the identity, or drop the directions that R maps to 0."
        )
    return _Decomposition(U, singular_values, Vt)


def _determinant_sign(decomposition: _Decomposition) -> float:
    U, _, Vt = decomposition
    # The orthogonal factors give the exact sign, even if the determinant of R underflows or overflows.
    return float(np.linalg.slogdet(U)[0] * np.linalg.slogdet(Vt)[0])


def _require_positive_determinant(decomposition: _Decomposition) -> None:
    if _determinant_sign(decomposition) < 0:
        odd = len(decomposition[1]) % 2
        raise ValueError(
            "Argument `R` must have a positive determinant, as factors near the identity do. Received: det R < 0. "
            "Factorize diag(R, -1) with on_negative_determinant='augment'"
            + (", or -R with the labels' sign flipped." if odd else ". (Flipping the labels' sign requires odd d.)")
        )


def _polar(R: Floats, depth: int, decomposition: _Decomposition) -> Floats:
    U, singular_values, Vt = decomposition
    basis, angles = decompose_rotation(U @ Vt)
    # In the basis S of the rotation, with X = P^(1/l): S^T A_i S = D^(i-1) (D X - I) D^-(i-1), and
    # D X - I = (D - I) X + (X - I) keeps its relative accuracy when all three are near the identity.
    directions = basis.T @ Vt.T
    stretch = (directions * np.expm1(np.log(singular_values) / depth)) @ directions.T
    rotated, rotation = (rotate_minus_identity(X, angles / depth) for X in (stretch, np.eye(len(R))))
    first = rotated + rotation + stretch
    A = np.empty((depth, *R.shape))
    for i in range(depth):
        rotated_basis = rotate(basis.T, -angles * (i / depth)).T
        A[i] = rotated_basis @ first @ rotated_basis.T
    return A


def _paper(R: Floats, depth: int, decomposition: _Decomposition) -> Floats:
    if depth < 5:
        raise ValueError(
            f"Argument `depth` must be 5 or more with method='paper'. Received: depth={depth}. Use method='polar'."
        )
    U, singular_values, Vt = decomposition
    if np.linalg.slogdet(U)[0] < 0:
        signs = np.where(np.arange(len(R)) == 0, -1.0, 1.0)
        U = U * signs
        Vt = signs[:, None] * Vt
    gamma = np.abs(np.log(singular_values)).max()
    q = min(max(round(math.pi * depth / (4 * math.pi + 3 * gamma)), 1), (depth - 1) // 4)
    p = depth - 4 * q
    stretch = np.diag(np.expm1(np.log(singular_values) / p))
    return np.concatenate([_rotation_factors(Vt, q), np.repeat(stretch[None], p, axis=0), _rotation_factors(U, q)])


def _rotation_factors(Q: Floats, q: int) -> Floats:
    """Return 2q factors of a rotation: q for its half turns (pairs of eigenvalues -1) and q for its other angles."""
    basis, angles, half_turns = split_rotation(Q)
    factors = [basis @ rotate_minus_identity(basis.T, turns / q) for turns in (half_turns, angles)]
    return np.repeat(factors, q, axis=0)


def _log(R: Floats, depth: int, decomposition: _Decomposition) -> Floats:
    eigenvalues = np.linalg.eigvals(R)
    negative = (eigenvalues.real < 0) & (np.abs(eigenvalues.imag) <= 1e-12 * np.abs(eigenvalues))
    if negative.any():
        raise ValueError(
            f"Argument `R` must have no negative eigenvalues with method='log'. Received: "
            f"{eigenvalues[negative].real.min():.6g}. Use method='polar'."
        )
    # Both functions require norms near 1.
    size = float(decomposition.singular_values[0])
    logarithm = np.asarray(scipy.linalg.logm(R / size))
    layer = size ** (1 / depth) * np.asarray(scipy.linalg.expm(logarithm.real / depth))
    error = np.abs(np.linalg.matrix_power(layer, depth) - R).max() / size
    if (np.iscomplexobj(logarithm) and np.abs(logarithm.imag).max() > 1e-8) or not error < 1e-11 * depth:
        raise ValueError(
            f"Argument `R` must have a well-conditioned principal logarithm with method='log'. Received: a matrix for "
            f"which the product has a relative error of {error:.2g}. Use method='polar'."
        )
    return np.repeat((layer - np.eye(len(R)))[None], depth, axis=0)


def _psd(R: Floats, depth: int, decomposition: _Decomposition) -> Floats:
    asymmetry = np.abs(R - R.T).max()
    eigenvalues, vectors = np.linalg.eigh((R + R.T) / 2)
    if asymmetry > 1e-12 * np.abs(R).max() or eigenvalues[0] <= 0:
        raise ValueError(
            f"Argument `R` must be symmetric positive definite with method='psd'. Received: a matrix that differs from "
            f"its transpose by {asymmetry:.3g}, smallest eigenvalue of the symmetric part {eigenvalues[0]:.3g}. Use "
            f"method='polar'."
        )
    layer = (vectors * np.expm1(np.log(eigenvalues) / depth)) @ vectors.T
    return np.repeat(layer[None], depth, axis=0)


Method: TypeAlias = Callable[[Floats, int, _Decomposition], Floats]
METHODS: dict[str, Method] = {"polar": _polar, "paper": _paper, "log": _log, "psd": _psd}
