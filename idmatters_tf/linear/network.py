"""End-to-end maps of deep linear networks, norms of their layers, and initial weights.

There are two notations, after the two papers. Hardt & Ma's residual networks are arrays `A` of shape (depth, d, d).
A[0] is their A_1 and is applied first; the map is (I + A_l) ... (I + A_1). Li et al.'s n-shortcut networks are arrays
`W` of shape (units, n, d, d). W[r, 0] is applied first in unit r, whose map is I + W[r, n-1] ... W[r, 0].
`shortcut=False` omits the identity, for a plain network. Hardt & Ma's networks have n = 1: `W = A[:, None]`.
"""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf._arguments import check_choice, positive_integer, seed_number
from idmatters_tf.linear._arguments import Floats, real_array


def compose(A: ArrayLike) -> Floats:
    """Return the end-to-end map (I + A_l) ... (I + A_1) of a linear residual network.

    Source: Hardt & Ma, *Identity Matters in Deep Learning*, Eq. 2.1 (all versions).

    Args:
        A: (depth, d, d), A[0] is applied first.

    Returns:
        (d, d) float64.

    Example:

    >>> compose([[[1.0]], [[0.5]]])
    array([[3.]])
    """
    A = real_array("A", A, ("depth", "d", "d"))
    product = np.eye(A.shape[-1])
    for layer in A:
        # X + A X in place of (I + A) X keeps the digits of entries of A far below 1.
        product = product + layer @ product
    return product


def shortcut_compose(W: ArrayLike, *, shortcut: bool = True) -> Floats:
    """Return the end-to-end map of an n-shortcut network or a plain network.

    Source: Li et al., *Demystifying ResNet*, Eq. 5.

    Args:
        W: (units, n, d, d), W[r, 0] is applied first in unit r.
        shortcut: True if each unit adds its input.

    Returns:
        (d, d) float64.
    """
    W = real_array("W", W, ("units", "n", "d", "d"))
    product = np.eye(W.shape[-1])
    for unit in W:
        branch = product
        for layer in unit:
            branch = layer @ branch
        product = product + branch if shortcut else branch
    return product


def layer_norms(A: ArrayLike) -> Floats:
    """Compute the spectral norm of each layer.

    Args:
        A: (..., d, d).

    Returns:
        (...) float64.

    Raises:
        ValueError: for arrays with fewer than two axes, and values that are not finite real numbers.
    """
    A = real_array("A", A, None)
    if A.ndim < 2 or 0 in A.shape[-2:]:
        raise ValueError(f"Argument `A` must have shape (..., d, d). Received: shape {A.shape}")
    return np.asarray(np.linalg.norm(A, 2, axis=(-2, -1)))


def tensor_norm(A: ArrayLike) -> float:
    """Return |||A|||, the largest spectral norm of the layers.

    Source: Hardt & Ma, section 2 (all versions).

    Args:
        A: (depth, d, d).

    Returns:
        A float.

    Example:

    >>> float(tensor_norm([[[0.5]], [[-2.0]]]))
    2.0
    """
    return float(layer_norms(real_array("A", A, ("depth", "d", "d"))).max())


def initial_weights(
    kind: str,
    units: int,
    shortcut_depth: int,
    dim: int,
    *,
    seed: int = 0,
    networks: int | None = None,
) -> Floats:
    """Draw starting points of gradient descent.

    Source: Li et al., section 5. "small" is called "zero initialization" in the paper.

    Args:
        kind: "zero"; "xavier": N(0, 1/dim); "small": 0.01 times that; "orthogonal": Haar-distributed.
        units: number of units.
        shortcut_depth: layers per unit, Li et al.'s n.
        dim: dimension d.
        seed: seed of the generator, a non-negative integer.
        networks: number of networks; None for one network without the first axis.

    Returns:
        ([networks,] units, shortcut_depth, dim, dim) float64.
    """
    for name, value in (("units", units), ("shortcut_depth", shortcut_depth), ("dim", dim)):
        positive_integer(name, value)
    check_choice("kind", kind, ("zero", "xavier", "small", "orthogonal"))
    several = () if networks is None else (positive_integer("networks", networks),)
    shape = (*several, units, shortcut_depth, dim, dim)
    rng = np.random.default_rng(seed_number(seed))
    if kind == "zero":
        return np.zeros(shape)
    if kind == "xavier":
        return rng.normal(scale=dim**-0.5, size=shape)
    if kind == "small":
        return rng.normal(scale=0.01 * dim**-0.5, size=shape)
    q, r = np.linalg.qr(rng.normal(size=shape))
    # The signs make the distribution independent of the QR algorithm (Mezzadri, 2007).
    return q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
