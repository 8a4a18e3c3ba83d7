"""Gradient descent of deep linear residual networks between fixed input and output maps, from zero.

The network is x -> B (I + A_l) ... (I + A_1) C x with a fixed input map C, (width, d), and a fixed output map B,
(k, width); Hardt & Ma's random projection and head are such maps. Only the A_i are trained, from zero.
The setting is that of Zou, Long & Gu, *On the global convergence of training deep linear ResNets* (ICLR 2020, arXiv
2003.01094). Formulas marked "after Zou, Long & Gu" restate the form of their theorem without its constants.
"""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf._arguments import non_negative_integer, positive_integer, seed_number
from idmatters_tf.linear._arguments import Floats, Integers, non_negative, real_array


class FixedMaps(NamedTuple):
    """Input and output maps. inputs: C, (width, d). outputs: B, (k, width)."""

    inputs: Floats
    outputs: Floats


def identity_maps(d: int, k: int, width: int | None = None, *, scale: float = 1.0) -> FixedMaps:
    """Return maps that write inputs to the first d units and read outputs from the last k units.

    B C = 0 if the width is d + k or more, so that the network starts as the zero map.
    After Zou, Long & Gu, "modified identity input and output transformations", for width d + k.

    Args:
        d: dimension of the inputs.
        k: dimension of the outputs.
        width: number of units, at least d + k, which is the default.
        scale: factor of each map.

    Example:

    >>> C, B = identity_maps(1, 1)
    >>> C.tolist(), B.tolist()
    ([[1.0], [0.0]], [[0.0, 1.0]])
    """
    d = positive_integer("d", d)
    k = positive_integer("k", k)
    width = positive_integer("width", width) if width is not None else d + k
    if width < d + k:
        raise ValueError(f"Argument `width` must be at least d + k = {d + k}. Received: width={width}")
    return FixedMaps(scale * np.eye(width, d), scale * np.eye(k, width, width - k))


def gaussian_maps(d: int, k: int, width: int, *, scale: float = 1.0, seed: int = 0) -> FixedMaps:
    """Draw maps with entries N(0, scale^2 / width), whose singular values are near `scale` for large widths.

    After Zou, Long & Gu, "Gaussian random linear transformations".
    """
    rng = np.random.default_rng(seed_number(seed))
    deviation = scale / math.sqrt(positive_integer("width", width))
    return FixedMaps(rng.normal(scale=deviation, size=(width, d)), rng.normal(scale=deviation, size=(k, width)))


def fixed_maps_rate(maps: FixedMaps, depth: int, R: ArrayLike) -> float:
    """Return the learning rate 1 / (l ||B|| ||C|| (||B|| ||C|| + ||B C - R||_F)).

    White inputs. After Zou, Long & Gu, with a constant of 1.
    """
    C, B = maps
    sizes = float(np.linalg.norm(B, 2) * np.linalg.norm(C, 2))
    R = real_array("R", R, (len(B), C.shape[1]))
    return 1 / (positive_integer("depth", depth) * sizes * (sizes + float(np.linalg.norm(B @ C - R))))


def fixed_maps_factor(maps: FixedMaps, depth: int, rate: float) -> float:
    """Return 1 - rate * l * sigma_min(B)^2 sigma_min(C)^2 / e, a bound of the factor of the loss in a step.

    White inputs. After Zou, Long & Gu; measured by `python -m trainers.landscape --experiment projections`.
    """
    smallest = np.linalg.svd(maps.inputs, compute_uv=False)[-1] * np.linalg.svd(maps.outputs, compute_uv=False)[-1]
    return float(1 - rate * depth * smallest**2 / math.e)


class FixedMapsDescent(NamedTuple):
    """Histories of descent of many networks.

    losses: ||B f C - R||_F^2 / 2 before each step and at the end, (steps + 1, networks). tau: largest spectral norm of
    a layer at the end, (networks,), NaN after divergence. A: final layers, (depth, networks, width, width). steps:
    first index at which the loss is at most the goal, (networks,); -1 if it is not reached.
    """

    losses: Floats
    tau: Floats
    A: Floats
    steps: Integers


def fixed_maps_descent(
    maps: FixedMaps, R: ArrayLike, depth: int, rates: ArrayLike, steps: int, *, goal: float = 0.0
) -> FixedMapsDescent:
    """Run gradient descent of ||B (I + A_l) ... (I + A_1) C - R||_F^2 / 2 from zero for many targets in parallel.

    Args:
        maps: C and B.
        R: targets, (networks, k, d). White inputs.
        depth: l.
        rates: learning rates, a number or (networks,).
        steps: largest number of steps.
        goal: loss at which a network counts as converged; descent ends when all networks have reached it.

    Returns:
        `FixedMapsDescent`.
    """
    C, B = (real_array(name, matrix, None) for name, matrix in zip(("inputs", "outputs"), maps, strict=True))
    R = real_array("R", R, ("networks", len(B), C.shape[1]))
    depth = positive_integer("depth", depth)
    steps = non_negative_integer("steps", steps)
    goal = non_negative("goal", goal)
    networks = len(R)
    width = len(C)
    rates = np.broadcast_to(real_array("rates", rates, None), (networks,))[:, None, None]
    A = np.zeros((depth, networks, width, width))
    hidden = np.empty((depth + 1, networks, *C.shape))
    hidden[0] = C
    losses = np.full((steps + 1, networks), np.nan)
    reached = np.full(networks, -1)
    with np.errstate(over="ignore", invalid="ignore"):
        step = 0
        for step in range(steps + 1):
            for layer in range(depth):
                np.matmul(A[layer], hidden[layer], out=hidden[layer + 1])
                hidden[layer + 1] += hidden[layer]
            error = B @ hidden[-1] - R
            losses[step] = np.einsum("kij,kij->k", error, error) / 2
            reached[(reached < 0) & (losses[step] <= goal)] = step
            if step == steps or (reached >= 0).all():
                break
            behind = B.T @ error
            for layer in reversed(range(depth)):
                before = behind + A[layer].swapaxes(-1, -2) @ behind
                A[layer] -= rates * (behind @ hidden[layer].swapaxes(-1, -2))
                behind = before
        tau = np.full(networks, np.nan)
        finite = np.isfinite(A).all(axis=(0, 2, 3))
        if finite.any():
            tau[finite] = np.linalg.norm(A[:, finite], 2, axis=(-2, -1)).max(axis=0)
    return FixedMapsDescent(losses[: step + 1], tau, A, reached)
