"""Guarantees of convergence theorems for gradient descent from a given point.

They hold for plain deep linear networks and for residual networks with units of one layer, whose layers are I + A. The
loss is L = ||Y - f X||_F^2 / (2m), as in `gradient_descent`, and rate is its learning rate.
"""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

import dataclasses
import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf.linear._arguments import Floats, non_negative, overflow
from idmatters_tf.linear.flow import as_plain, largest_defect
from idmatters_tf.linear.identity_start import ROUNDING
from idmatters_tf.linear.network import frobenius_norm, layer_norms
from idmatters_tf.linear.shortcuts import LayerJacobians, layer_jacobians, problem
from idmatters_tf.linear.statistics import regression

Scope = Literal["step", "run"]


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Guarantee of one theorem for gradient descent from one point, in exact arithmetic.

    Attributes:
        theorem: name of the theorem, see `certificates`.
        applies: True if the assumptions hold.
        reason: description of the first assumption that fails; empty if the theorem applies.
        scope: "step" for a guarantee of the next step only, where the product of (1 - contraction) over successive
            points bounds a run; "run" for a guarantee of all later steps.
        contraction: lower bound of 1 - (L - L_min after a step) / (L - L_min before); 0 without a guarantee.
        largest_rate: largest learning rate that the theorem allows; NaN if it applies at no rate, infinite if it
            exceeds float64.
    """

    theorem: str
    applies: bool
    reason: str
    scope: Scope
    contraction: float
    largest_rate: float

    def steps(self, start: float, goal: float) -> float:
        """Return a sufficient number of steps from one excess risk to another; infinite without a guarantee.

        Args:
            start: initial excess risk, 0 or more. With scope "step", it is the excess risk at the point.
            goal: final excess risk, 0 or more.
        """
        start, goal = non_negative("start", start), non_negative("goal", goal)
        if start <= goal:
            return 0.0
        if start * (1 - self.contraction) <= goal:
            return 1.0
        if self.scope == "step" or not self.contraction or not goal:
            return math.inf
        steps = (math.log(start) - math.log(goal)) / -math.log1p(-self.contraction)
        return float(math.ceil(steps)) if steps < math.inf else math.inf


def certificates(
    W: ArrayLike, sxx: ArrayLike, syx: ArrayLike, learning_rate: float, shortcut: bool = True
) -> dict[str, Certificate]:
    """Evaluate convergence theorems for gradient descent from a point.

    With N layers, R the optimal map, E = f - R, S = S_XX, and mu the constant of a Polyak-Lojasiewicz inequality
    ||grad L||_F^2 >= 2 mu (L - L_min) at the point, the theorems are:

    - "jacobians" (one step): mu = sigma_min(S) sum_i sigma_min(P_i)^2 sigma_min(Q_i)^2 with the true Jacobians P_i and
      Q_i after and before layer i. It holds at any point.
    - "dominance" (one step): Hardt & Ma's (2.3), `gradient_dominance`, with the bound 1 - |||A||| for these singular
      values: mu = N (1 - tau)^(2N-2) sigma_min(S), tau < 1.

      Both hold for rate K <= 2, with the contraction 2 mu rate (1 - rate K / 2). K bounds the second derivative of L
      along the step. With G_i the gradient of layer i, m_i = ||W_i|| + rate ||G_i||, and e_k the sum of all products of
      k of the numbers m_1^2, ..., m_N^2,

          K = ||S|| e_(N-1) + sqrt(4 ||S|| e_(N-2) (L - L_min)).

      Proof: let h(t) = L(W - t G) - L_min for 0 <= t <= rate, where the norm of layer i is at most m_i. The
      first-order change of the map, sum_i P_i G_i Q_i, has Frobenius norm at most sqrt(e_(N-1)) ||G||_F by
      Cauchy-Schwarz, and the second-order change, 2 sum_(i<j) P_j G_j C_ij G_i Q_i, at most sqrt(2 e_(N-2)) ||G||_F^2.
      Hence h''(t) is at most (||S|| e_(N-1) + sqrt(2 h(t)) sqrt(||S|| 2 e_(N-2))) ||G||_F^2, and at most K ||G||_F^2
      while h(t) <= h(0). Then h(t) <= h(0) - t (1 - t K / 2) ||G||_F^2, which is below h(0) for 0 < t < 2 / K.
      Therefore h does not return to h(0) before the step ends. The contraction follows from ||G||_F^2 >= 2 mu h(0).
    - "balanced" (a run): Arora, Cohen, Golowich & Hu (arXiv 1810.02281), Theorem 1. Whitened inputs, deficiency margin
      c = sigma_min(R) - ||E||_F > 0, delta-balanced layers with delta <= c^2 / (256 N^3 ||R||_F^(2(N-1)/N)), and rate
      at most c^((4N-2)/N) / (6144 N^3 ||R||_F^((6N-4)/N)). Contraction rate * c^(2(N-1)/N). The text of the paper was
      not available. The constants 256 and 6144, all exponents, and the number of steps
      log(start / goal) / (rate c^(2(N-1)/N)) agree with lecture notes that state the theorem for the same loss L;
      `steps` is not larger.
    - "zero-asymmetric" (a run): the start of Wu, Wang & Ma (arXiv 1911.00645), whose abstract states O(N^3
      log(1 / goal)) steps for every target; the text was not available. Whitened inputs, all layers the identity except
      a zero last one, rate at most 1 / (4 N u) with u = max(4 N ||R||_F^2, e). Contraction 3/2 rate. The constants and
      the proof, in docs/reference/results/landscape.md, are ours: O(N^2 ||R||_F^2 log(1 / goal)) steps.
    - "positive definite" (a run): the setting of Bartlett, Helmbold & Long (arXiv 1802.06093), whose abstract states
      steps polynomial in N, the condition number and log(d / goal); the text was not available. Whitened inputs,
      identity start, symmetric positive definite R. All layers remain diagonal in the eigenbasis of R, with the
      recursion a <- a - rate a^(N-1) (a^N - lambda) for each eigenvalue lambda (`scalar_recursions`). Between 1 and
      b = lambda^(1/N) the function (a^N - lambda)^2 / (2N) has second derivatives of at most
      K = (2N - 1) max(1, b)^(2N-2), and its squared gradient is at least 2N min(1, b)^(2N-2) times the function. For
      rate at most 1/K, every a therefore moves towards b without passing it, and each step contracts by at least
      rate N min(1, b)^(2N-2). The proof and its constants are ours.

    The guarantees assume exact arithmetic. Near the optimum, the excess risk does not fall below rounding errors.

    Args:
        W: a point, (units, n, d, d); with shortcuts n = 1.
        sxx: (d, d). "Whitened inputs" means sxx = I.
        syx: (d, d).
        learning_rate: learning rate of descent.
        shortcut: False for a plain network.

    Returns:
        Dict of `Certificate` objects by theorem.

    Raises:
        ValueError: for shortcuts over two layers or more, and if the end-to-end map exceeds float64.
    """
    W, sxx, syx = problem(W, sxx, syx)
    if shortcut and W.shape[1] > 1:
        raise ValueError(
            f"Argument `W` must have n = 1 with shortcuts. Received: shape {W.shape}. Pass shortcut=False for a plain "
            f"network."
        )
    rate = non_negative("learning_rate", learning_rate)
    # Overflow gives infinite bounds and the rate 0.
    with np.errstate(over="ignore", invalid="ignore"):
        point = _Point.from_weights(W, sxx, syx, shortcut)
        found = (
            _jacobians(point, rate),
            _dominance(point, rate),
            _balance(point, rate),
            _zero_asymmetric(point, rate),
            _positive_definite(point, rate),
        )
    return {certificate.theorem: certificate for certificate in found}


@dataclasses.dataclass(frozen=True)
class _Point:
    """Point of descent with the quantities of the theorems.

    Attributes:
        layers: (N, d, d).
        target: R if the inputs are whitened, (d, d).
        whitened: True if the inputs are whitened.
        jacobians: Jacobians around each layer.
        smallest, largest: extreme eigenvalues of S over the span of the inputs, the smallest rounded down.
        residual: sqrt(2 (L - L_min)).
        norms, gradient_norms: spectral norms of the layers and of their gradients.
    """

    layers: Floats
    target: Floats
    whitened: bool
    jacobians: LayerJacobians
    smallest: float
    largest: float
    residual: float
    norms: list[float]
    gradient_norms: list[float]

    @classmethod
    def from_weights(cls, W: Floats, sxx: Floats, syx: Floats, shortcut: bool) -> "_Point":
        layers = as_plain(W, shortcut)
        root, targets = regression(sxx, syx)
        around = layer_jacobians(layers[:, None], shortcut=False)
        residual = around.end_to_end @ root - targets
        if not all(np.isfinite(maps).all() for maps in (*around, residual)):
            raise overflow("certificates")
        gradient = around.pull_back(residual @ root.T)
        finite = bool(np.isfinite(gradient).all())
        deviations = np.linalg.svd(root, compute_uv=False) if root.size else np.zeros(1)
        return cls(
            layers,
            syx,
            bool(np.abs(sxx - np.eye(len(sxx))).max() <= ROUNDING * len(sxx)),
            around,
            float(np.maximum(deviations[-1] - len(root) * np.finfo(np.float64).eps * deviations[0], 0.0) ** 2),
            float(deviations[0] ** 2),
            frobenius_norm(residual),
            layer_norms(layers).tolist(),
            layer_norms(gradient).tolist() if finite else [math.inf] * len(layers),
        )

    def smoothness(self, rate: float) -> float:
        """Return K for a step of this rate, see `certificates`; infinite if it exceeds float64."""
        # Elementary symmetric polynomials of degree N, N - 1 and N - 2 of the layers so far.
        all_of_them, but_one, but_two = 1.0, 0.0, 0.0
        for norm, gradient_norm in zip(self.norms, self.gradient_norms, strict=True):
            size = (norm + rate * gradient_norm) ** 2 if norm + rate * gradient_norm < 1e150 else math.inf
            all_of_them, but_one, but_two = size * all_of_them, size * but_one + all_of_them, size * but_two + but_one
        K = self.largest * but_one + self.residual * math.sqrt(2 * self.largest * but_two)
        return math.inf if math.isnan(K) else K

    def largest_rate(self) -> float:
        """Return the largest rate with rate * K <= 2, rounded down. K increases with the rate."""
        low, high = 0.0, 2 / max(self.smoothness(0.0), float(np.finfo(np.float64).tiny))
        if high * self.smoothness(high) <= 2:
            return high
        while high - low > ROUNDING * high and high > np.finfo(np.float64).tiny:
            middle = (low + high) / 2
            low, high = (middle, high) if middle * self.smoothness(middle) <= 2 else (low, middle)
        return low


def _jacobians(point: _Point, rate: float) -> Certificate:
    N, d = point.layers.shape[:2]
    # Relative rounding error of each product, in units of the product of the norms.
    rounding = N * d * float(np.finfo(np.float64).eps)
    norms = np.array(point.norms)
    bounds = np.cumprod(np.append(1.0, norms[:-1])), np.cumprod(np.append(1.0, norms[:0:-1]))[::-1]
    before, after = (
        np.maximum(np.linalg.svd(maps, compute_uv=False)[:, -1] - rounding * bound, 0.0)
        for maps, bound in zip((point.jacobians.before, point.jacobians.after), bounds, strict=True)
    )
    mu = point.smallest * float(np.sum((after * before) ** 2))
    reason = "" if mu > 0 else "for every layer, the product before or after it is singular up to rounding"
    return _for_a_step("jacobians", reason, point, rate, mu)


def _dominance(point: _Point, rate: float) -> Certificate:
    N, d = point.layers.shape[:2]
    tau = float(layer_norms(point.layers - np.eye(d)).max())
    if not tau < 1:
        return _for_a_step("dominance", f"|||A||| = {tau:.3g} is not below 1", point, rate, 0.0)
    mu = N * math.exp((2 * N - 2) * math.log1p(-tau)) * point.smallest
    return _for_a_step("dominance", "" if mu > 0 else "the bound is below float64", point, rate, mu)


def _for_a_step(theorem: str, reason: str, point: _Point, rate: float, mu: float) -> Certificate:
    if not point.smallest:
        reason = "the inputs are all zero, or their smallest variance is at rounding level"
    if reason:
        return Certificate(theorem, False, reason, "step", 0.0, math.nan)
    largest = point.largest_rate()
    share = 2 * mu * rate * (1 - rate * point.smoothness(rate) / 2) if rate <= largest else 0.0
    return _bound_rate(theorem, "step", rate, largest, share)


def _balance(point: _Point, rate: float) -> Certificate:
    if not point.whitened:
        return _not_for_a_run("balanced", "the inputs are not whitened")
    N = len(point.layers)
    size = frobenius_norm(point.target)
    smallest = float(np.linalg.svd(point.target, compute_uv=False)[-1])
    margin = smallest - frobenius_norm(point.jacobians.end_to_end - point.target)
    if not margin > 0:
        return _not_for_a_run("balanced", f"the deficiency margin is {margin:.3g}, not positive")
    # Powers are computed by logarithms, because they exceed float64 before their quotients do.
    log_margin, log_size = math.log(margin), math.log(size)
    delta = largest_defect(point.layers)
    allowed = _exp(2 * log_margin - 2 * (N - 1) / N * log_size) / (256 * N**3)
    if not delta <= allowed:
        return _not_for_a_run("balanced", f"the layers are {delta:.3g}-balanced, at most {allowed:.3g} is allowed")
    largest = _exp(((4 * N - 2) * log_margin - (6 * N - 4) * log_size) / N) / (6144 * N**3)
    return _bound_rate("balanced", "run", rate, largest, rate * _exp(2 * (N - 1) / N * log_margin))


def _zero_asymmetric(point: _Point, rate: float) -> Certificate:
    N, d = len(point.layers), len(point.target)
    start = np.array([np.eye(d)] * (N - 1) + [np.zeros((d, d))])
    reason = "" if point.whitened else "the inputs are not whitened"
    if not reason and np.abs(point.layers - start).max() > ROUNDING:
        reason = "the weights are not the zero-asymmetric start"
    if reason:
        return _not_for_a_run("zero-asymmetric", reason)
    u = max(4 * N * float(np.sum(point.target**2)), math.e)
    return _bound_rate("zero-asymmetric", "run", rate, 1 / (4 * N * u), 1.5 * rate)


def _positive_definite(point: _Point, rate: float) -> Certificate:
    N, d = len(point.layers), len(point.target)
    reason = "" if point.whitened else "the inputs are not whitened"
    if not reason and np.abs(point.layers - np.eye(d)).max() > ROUNDING:
        reason = "the weights are not the identity"
    if not reason and np.abs(point.target - point.target.T).max() > ROUNDING * np.abs(point.target).max():
        reason = "the target is not symmetric"
    low, high = np.linalg.eigvalsh((point.target + point.target.T) / 2)[[0, -1]]
    if not reason and low <= 0:
        reason = f"the target has the eigenvalue {low:.3g}"
    if reason:
        return _not_for_a_run("positive definite", reason)
    power = (2 * N - 2) / N
    largest = 1 / ((2 * N - 1) * _exp(power * max(0.0, math.log(high))))
    contraction = rate * N * _exp(power * min(0.0, math.log(low)))
    return _bound_rate("positive definite", "run", rate, largest, contraction)


def _bound_rate(theorem: str, scope: Scope, rate: float, largest: float, contraction: float) -> Certificate:
    if not rate <= largest:
        reason = f"the rate is {rate:.3g}, at most {largest:.3g} is allowed"
        return Certificate(theorem, False, reason, scope, 0.0, largest)
    # Values outside [0, 1] are rounding errors.
    return Certificate(theorem, True, "", scope, min(max(contraction, 0.0), 1.0), largest)


def _not_for_a_run(theorem: str, reason: str) -> Certificate:
    return Certificate(theorem, False, reason, "run", 0.0, math.nan)


def _exp(exponent: float) -> float:
    # Infinite where math.exp raises.
    return float(np.exp(exponent))
