"""Random starts of deep residual networks: independent weights, weights correlated over depth, and the scale they need.

The network is h_k = h_(k-1) + s V_k relu(W_k h_(k-1)) ("two layers", res-3) or
h_k = h_(k-1) + s V_k relu(h_(k-1)) ("one layer", res-1), for k = 1..L, with s = L^-beta. Entries of V and W are
N(0, 1/d), independent in a layer. Along the depth they are independent or correlated.
`idmatters_tf.depth.scale_depth` has s = (L0 / L)^alpha: its alpha is beta.
The question is that of Marion, Fermanian, Biau & Vert, *Scaling ResNets in the large-depth regime* (JMLR 26:56, 2025,
arXiv 2206.06929). The formulas here are derived.
"""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

import math
from typing import Literal

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike

from idmatters_tf._arguments import check_choice, positive_integer, seed_number
from idmatters_tf.linear._arguments import Floats, real_array

Kind = Literal["independent", "fractional", "smooth", "equal"]
KINDS: tuple[Kind, ...] = ("independent", "fractional", "smooth", "equal")


def depth_correlations(kind: Kind, depth: int, parameter: float = 0.0) -> Floats:
    """Return the correlations of a weight with the same weight 0, 1, ... L - 1 layers later.

    Args:
        kind: "independent"; "fractional": increments of fractional Brownian motion with the Hurst index `parameter`
            in (0, 1), independent for 1/2; "smooth": exp(-(k / L)^2 / (2 parameter^2)), with the fraction `parameter`
            of the depth; "equal": all layers have the same weights.
        depth: L.
        parameter: see above.

    Returns:
        (depth,) float64, 1 first.

    Example:

    >>> depth_correlations("fractional", 3, 0.5)
    array([1., 0., 0.])
    """
    check_choice("kind", kind, KINDS)
    k = np.arange(positive_integer("depth", depth), dtype=np.float64)
    if kind == "equal":
        return np.ones_like(k)
    if kind == "independent":
        return (k == 0).astype(np.float64)
    if kind == "smooth":
        if not parameter > 0:
            raise ValueError(f"Argument `parameter` must be positive. Received: parameter={parameter!r}")
        return np.exp(-np.square(k / len(k) / parameter) / 2)
    if not 0 < parameter < 1:
        raise ValueError(f"Argument `parameter` must be between 0 and 1. Received: parameter={parameter!r}")
    power = 2 * parameter
    return (np.abs(k - 1) ** power - 2 * k**power + (k + 1) ** power) / 2


def signal_change(
    correlations: ArrayLike, width: int, scales: ArrayLike, *, layers: int = 2, networks: int = 1, seed: int = 0
) -> Floats:
    """Draw networks and compute ||h_L - h_0||^2 / ||h_0||^2 for one input N(0, I) of each.

    Args:
        correlations: see `depth_correlations`, (depth,).
        width: d.
        scales: factors s of every branch, (scales,). The same networks are used for all of them.
        layers: 2 for V relu(W h), 1 for V relu(h).
        networks: number of networks; each has its own input.
        seed: seed of the generator.

    Returns:
        (scales, networks) float64; infinite after an overflow.
    """
    correlations = real_array("correlations", correlations, ("depth",))
    width = positive_integer("width", width)
    scales = real_array("scales", scales, ("scales",))[:, None]
    check_choice("layers", layers, (1, 2))
    change = np.empty((len(scales), positive_integer("networks", networks)))
    root = _factor(correlations)
    for network, rng in enumerate(np.random.default_rng(seed_number(seed)).spawn(networks)):
        start = rng.normal(size=width)
        V = _draw_weights(root, width, rng)
        W = _draw_weights(root, width, rng) if layers == 2 else None
        h: Floats = np.tile(start, (len(scales), 1))
        with np.errstate(over="ignore", invalid="ignore"):
            for k in range(len(correlations)):
                inner: Floats = h if W is None else h @ W[k].T
                h = h + scales * (np.maximum(inner, 0) @ V[k].T)
            change[:, network] = np.square(h - start).sum(axis=1) / (start @ start)
    return np.where(np.isnan(change), np.inf, change)


def _factor(correlations: Floats) -> Floats:
    """Return F with F F^T = the Toeplitz matrix of the correlations, (depth, rank)."""
    if not np.any(correlations[1:]):
        return np.eye(len(correlations))
    values, vectors = np.linalg.eigh(scipy.linalg.toeplitz(correlations))
    # Smooth correlations have few eigenvalues above the rounding errors.
    kept = values > 1e-14 * values[-1]
    return vectors[:, kept] * np.sqrt(values[kept])


def _draw_weights(factor: Floats, width: int, rng: np.random.Generator) -> Floats:
    """Draw weights N(0, 1 / width), independent in a layer and correlated along the depth, (depth, width, width)."""
    depth, rank = factor.shape
    noise = rng.normal(scale=width**-0.5, size=(rank, width * width))
    independent = depth == rank and np.count_nonzero(factor) == depth
    return (noise if independent else factor @ noise).reshape(depth, width, width)


def expected_change(depth: int, scale: float) -> float:
    """Return E ||h_L - h_0||^2 / ||h_0||^2 = (1 + s^2 / 2)^L - 1 for independent weights and two layers.

    It holds for every width. For s = L^(-1/2) the limit is e^(1/2) - 1 = 0.649; for s = 1/L it is 1 / (2 L).

    Example:

    >>> expected_change(2, 1.0)
    1.25
    """
    return math.expm1(depth * math.log1p(scale**2 / 2))


def _relu_covariance(correlations: ArrayLike) -> Floats:
    """Return E relu(u) relu(v) for standard normal u and v with a correlation (the arc-cosine kernel of order 1)."""
    rho = np.clip(real_array("correlations", correlations, None), -1, 1)
    return (np.sqrt(1 - rho * rho) + rho * (np.pi - np.arccos(rho))) / (2 * np.pi)


def first_order_change(correlations: ArrayLike, layers: int = 2) -> float:
    """Return E ||sum_k V_k relu(W_k h_0)||^2 / ||h_0||^2, the change for small s in units of s^2.

    It is exact for two layers: sum over k and j of c_(k-j) K(c_(k-j)), with the correlations c and the covariance K of
    the rectified units. For one layer, h_0 is N(0, I) and K = 1/2. Half of its exponent in L is the beta at which the
    first order stays of one size: 1/2 for independent weights and 1 for equal or smooth ones. For fractional weights
    of one layer it is the Hurst index H, and of two layers max(H, 1/2).
    """
    c = real_array("correlations", correlations, ("depth",))
    terms = c * (_relu_covariance(c) if layers == 2 else 0.5)
    depth = len(c)
    return float(depth * terms[0] + 2 * np.sum((depth - np.arange(1, depth)) * terms[1:]))
