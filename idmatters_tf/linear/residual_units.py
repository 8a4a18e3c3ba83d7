"""Risk, gradient, Hessian and critical points of small nonlinear residual networks, against the best linear predictor.

The network is h_l = h_(l-1) + V_l phi(U_l h_(l-1)) for l = 1..L, with h_0 = x, phi = tanh or the identity, and the
output w^T h_L. The risk is sum_i (w^T h_L(x_i) - y_i)^2 / (2n). Parameters are vectors theta = (U_1, V_1, ..., U_L,
V_L, w), row-major.
The networks are those of Yun, Sra & Jadbabaie, *Are deep ResNets provably better than linear predictors?* (2019, arXiv
1907.03922).
"""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

import dataclasses
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmatters_tf._arguments import non_negative_integer, positive_integer
from idmatters_tf.linear._arguments import Floats, real_array

# Of type float64 or complex128.
Array: TypeAlias = NDArray[Any]

# Step of complex differentiation; its square is far below the rounding error of 1.
COMPLEX_STEP = 1e-30


class LinearPredictor(NamedTuple):
    """Best predictor t^T x without intercept. t: (d,). risk: a float."""

    t: Floats
    risk: float


def linear_predictor(X: ArrayLike, y: ArrayLike) -> LinearPredictor:
    """Compute the least-squares predictor t^T x and its risk ||X^T t - y||^2 / (2n).

    Args:
        X: inputs, (d, n).
        y: outputs, (n,).

    Example:

    >>> linear_predictor([[1.0, 2.0]], [1.0, 1.0]).risk
    0.05
    """
    X = real_array("X", X, ("d", "n"))
    y = real_array("y", y, (X.shape[1],))
    t = np.asarray(np.linalg.lstsq(X.T, y, rcond=None)[0], np.float64)
    return LinearPredictor(t, float(np.square(X.T @ t - y).sum() / (2 * len(y))))


@dataclasses.dataclass(frozen=True)
class ResidualNetwork:
    """Shape of a network.

    Attributes:
        dim: dimension d of the inputs.
        blocks: number of blocks L.
        hidden: hidden units of each block, the rows of U_l.
        linear: True if the activation is the identity, in place of tanh.
    """

    dim: int
    blocks: int
    hidden: int
    linear: bool = False

    def __post_init__(self) -> None:
        for name in ("dim", "blocks", "hidden"):
            positive_integer(name, getattr(self, name))

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self.dim * (2 * self.blocks * self.hidden + 1)

    def unpack(self, theta: Array) -> tuple[Array, Array, Array]:
        """Return views U (..., L, hidden, d), V (..., L, d, hidden) and w (..., d) of theta (..., parameters)."""
        pairs = theta[..., : -self.dim].reshape(*theta.shape[:-1], self.blocks, 2, -1)
        U = pairs[..., 0, :].reshape(*pairs.shape[:-2], self.hidden, self.dim)
        V = pairs[..., 1, :].reshape(*pairs.shape[:-2], self.dim, self.hidden)
        return U, V, theta[..., -self.dim :]

    def _activate(self, inner: Array) -> Array:
        return inner if self.linear else np.tanh(inner)

    def features(self, theta: Array, X: Array) -> Array:
        """Compute h_L, (..., d, n)."""
        U, V, _ = self.unpack(theta)
        h: Array = X
        for block in range(self.blocks):
            h = h + V[..., block, :, :] @ self._activate(U[..., block, :, :] @ h)
        return h

    def risk(self, theta: Array, X: Array, y: Array) -> Array:
        """Compute the risk of each network, (...)."""
        errors = np.einsum("...d,...dn->...n", self.unpack(theta)[2], self.features(theta, X)) - y
        return np.square(errors).sum(axis=-1) / (2 * len(y))

    def gradient(self, theta: Array, X: Array, y: Array) -> Array:
        """Compute the gradient of the risk, of the shape of `theta`, also for complex parameters."""
        U, V, w = self.unpack(theta)
        inputs: list[Array] = []
        activations: list[Array] = []
        h: Array = X
        for block in range(self.blocks):
            inputs.append(h)
            activations.append(self._activate(U[..., block, :, :] @ h))
            h = h + V[..., block, :, :] @ activations[-1]
        errors: Array = (np.einsum("...d,...dn->...n", w, h) - y) / len(y)
        gradient: Array = np.empty_like(theta)
        pairs = gradient[..., : -self.dim].reshape(*theta.shape[:-1], self.blocks, 2, -1)
        gradient[..., -self.dim :] = np.einsum("...dn,...n->...d", h, errors)
        behind: Array = w[..., :, None] * errors[..., None, :]
        for block in reversed(range(self.blocks)):
            a = activations[block]
            inner: Array = V[..., block, :, :].swapaxes(-1, -2) @ behind
            if not self.linear:
                inner = inner * (1 - a * a)
            of_U: Array = inner @ inputs[block].swapaxes(-1, -2)
            of_V: Array = behind @ a.swapaxes(-1, -2)
            pairs[..., block, 0, :] = of_U.reshape(*theta.shape[:-1], -1)
            pairs[..., block, 1, :] = of_V.reshape(*theta.shape[:-1], -1)
            behind = behind + U[..., block, :, :].swapaxes(-1, -2) @ inner
        # `reshape` copies `gradient` if the slice is not contiguous.
        gradient[..., : -self.dim] = pairs.reshape(*theta.shape[:-1], -1)
        return gradient

    def hessian(self, theta: ArrayLike, X: Floats, y: Floats) -> Floats:
        """Compute the Hessian of the risk at one point, (parameters, parameters), by complex steps of the gradient.

        The error is at rounding level, because no difference is taken.
        """
        theta = real_array("theta", theta, (self.parameters,))
        shifted = theta + 1j * COMPLEX_STEP * np.eye(self.parameters)
        hessian: Floats = np.imag(self.gradient(shifted, X, y)) / COMPLEX_STEP
        return (hessian + hessian.T) / 2


@dataclasses.dataclass(frozen=True)
class CriticalPoint:
    """A point with a small gradient, and the quantities that the theorem compares.

    (a) and (b) are the geometric conditions, after Yun, Sra & Jadbabaie.

    Attributes:
        theta: parameters.
        gradient_norm: norm of the gradient.
        risk: risk of the network.
        linear_risk: risk of the best linear predictor.
        smallest_eigenvalue: of the Hessian.
        feature_rank: rank of E[h_L h_L^T]; (a) full rank: d.
        covered_rank: rank of (U_1; ...; U_L); (b) less than d.
    """

    theta: Floats
    gradient_norm: float
    risk: float
    linear_risk: float
    smallest_eigenvalue: float
    feature_rank: int
    covered_rank: int


def critical_point(
    network: ResidualNetwork, theta: ArrayLike, X: ArrayLike, y: ArrayLike, *, steps: int = 500, goal: float = 1e-9
) -> CriticalPoint:
    """Solve gradient = 0 from a starting point by the Levenberg-Marquardt method on the norm of the gradient.

    It finds minima and saddle points alike. It can end at a minimum of the norm with a gradient above the goal, which
    is not a critical point.

    Args:
        network: shape of the network.
        theta: starting point, (parameters,).
        X: inputs, (d, n).
        y: outputs, (n,).
        steps: largest number of steps.
        goal: norm of the gradient at which the search ends.

    Returns:
        `CriticalPoint`.
    """
    X = real_array("X", X, (network.dim, "n"))
    y = real_array("y", y, (X.shape[1],))
    theta = real_array("theta", theta, (network.parameters,)).copy()
    damping = 1e-3
    gradient = network.gradient(theta, X, y)
    norm = np.linalg.norm(gradient)
    for _ in range(non_negative_integer("steps", steps)):
        if norm <= goal or damping > 1e12:
            break
        values, vectors = np.linalg.eigh(network.hessian(theta, X, y))
        along = vectors.T @ gradient
        while damping <= 1e12:
            moved = theta - vectors @ (values / (values**2 + damping * norm) * along)
            moved_gradient = network.gradient(moved, X, y)
            if (moved_norm := np.linalg.norm(moved_gradient)) < norm:
                theta, gradient, norm = moved, moved_gradient, moved_norm
                damping = max(damping / 10, 1e-15)
                break
            damping *= 10
    U, _, _ = network.unpack(theta)
    return CriticalPoint(
        theta,
        float(norm),
        float(network.risk(theta, X, y)),
        linear_predictor(X, y).risk,
        float(np.linalg.eigvalsh(network.hessian(theta, X, y))[0]),
        int(np.linalg.matrix_rank(network.features(theta, X))),
        int(np.linalg.matrix_rank(U.reshape(-1, network.dim))),
    )
