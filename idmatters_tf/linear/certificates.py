"""What convergence theorems promise at a point of gradient descent: which apply, how fast the excess risk must fall.

All for plain deep linear networks and for residual ones with units of one layer, whose layers are I + A. The loss is
L = ||Y - f X||_F^2 / (2m), as in `gradient_descent`, and rate is its learning rate.
"""

# pyright: reportConstantRedefinition=false
# Matrices have capital letters, and an argument is checked under its own name.

import dataclasses
import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf.linear.arguments import Floats, non_negative, positive_integer, real_array
from idmatters_tf.linear.flow import as_plain, balancedness
from idmatters_tf.linear.network import layer_norms
from idmatters_tf.linear.shortcuts import layer_jacobians, problem
from idmatters_tf.linear.statistics import regression

# Equality of matrices that theorems ask for, up to this share of their size.
ROUNDING = 1e-12

Scope = Literal["point", "run"]


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What one theorem promises at one point.

    Attributes:
        theorem: its name, see `certificates`.
        applies: whether its assumptions hold.
        reason: the first assumption that fails, in words; empty where it applies.
        scope: "run": the promise holds for every step from here on. "point": it is about gradient flow at this point,
            rate times the speed at which log(L - L_min) falls here; a later point needs its own.
        contraction: 1 - (L - L_min after a step) / (L - L_min before) is at least this; 0 where nothing is promised.
        largest_rate: the largest learning rate that the theorem allows; NaN where it does not apply at any, and
            infinite where it is about gradient flow.
    """

    theorem: str
    applies: bool
    reason: str
    scope: Scope
    contraction: float
    largest_rate: float

    def steps(self, start: float, goal: float) -> float:
        """How many steps suffice from one excess risk to another at this contraction; infinite without a promise."""
        if goal >= start:
            return 0.0
        if not self.contraction:
            return math.inf
        return math.ceil(math.log(start / goal) / -math.log1p(-self.contraction))


def certificates(
    W: ArrayLike, sxx: ArrayLike, syx: ArrayLike, learning_rate: float, shortcut: bool = True
) -> dict[str, Certificate]:
    """Which convergence theorems apply at a point, and what each promises.

    With N layers, R the optimal map, E = f - R, and mu the constant of a Polyak-Lojasiewicz inequality
    ||grad L||^2 >= 2 mu (L - L_min), which promises a contraction of rate * 2 mu per step of a flow:

    - "jacobians" (a point): mu = sigma_min(S) sum_i sigma_min(P_i)^2 sigma_min(Q_i)^2 with the true Jacobians P_i and
      Q_i after and before layer i. It needs no ball.
    - "dominance" (a point): Hardt & Ma's (2.3), `gradient_dominance`, where those singular values are bounded by
      1 - |||A|||: mu = N (1 - tau)^(2N-2) sigma_min(S), tau < 1.
    - "balanced" (a run): Arora, Cohen, Golowich & Hu (arXiv 1810.02281), Theorem 1. Whitened inputs, deficiency margin
      c = sigma_min(R) - ||E||_F > 0, delta-balanced layers with delta <= c^2 / (256 N^3 ||R||_F^(2(N-1)/N)), and rate
      at most c^((4N-2)/N) / (6144 N^3 ||R||_F^((6N-4)/N)). Contraction rate * c^(2(N-1)/N). The constants were compared
      with notes of a course that states the theorem with the same loss L (the paper's own text was not at hand): 256,
      6144, all exponents, and the number of steps log(start / goal) / (rate c^(2(N-1)/N)) agree; `steps` is not larger.
    - "zero-asymmetric" (a run): the start of Wu, Wang & Ma (arXiv 1911.00645), whose abstract promises O(N^3
      log(1 / goal)) steps for every target; the text was not at hand. Whitened inputs, all layers the identity but a
      zero last one, rate at most 1 / (4 N u) with u = max(4 N ||R||_F^2, e). Contraction 3/2 rate. The constants are
      ours, and so is the proof, in docs/landscape.md: O(N^2 ||R||_F^2 log(1 / goal)) steps.
    - "positive definite" (a run): the setting of Bartlett, Helmbold & Long (arXiv 1802.06093), whose abstract promises
      steps polynomial in N, the condition number and log(d / goal); the text was not at hand. Whitened inputs, identity
      start, symmetric positive definite R. Then everything stays diagonal in R's eigenbasis, with the recursion
      a <- a - rate a^(N-1) (a^N - lambda) for each eigenvalue lambda (`scalar_recursions`). Between 1 and
      b = lambda^(1/N) the function (a^N - lambda)^2 / (2N) has second derivatives of at most
      K = (2N - 1) max(1, b)^(2N-2), and its gradient squared is at least 2N min(1, b)^(2N-2) times it: so for rate at
      most 1/K every a moves towards b without passing it, and each step contracts by at least
      rate N min(1, b)^(2N-2). This proof is ours, and so are its constants.

    All were searched for violations at random: none was found.

    Args:
        W: a point, (units, n, d, d); with shortcuts n = 1.
        sxx, syx: (d, d). "Whitened inputs" is sxx = I.
        learning_rate: of descent.
        shortcut: False for a plain network.

    Returns:
        A dict by theorem.

    Raises:
        ValueError: for shortcuts over two layers or more.
    """
    W, sxx, syx = problem(W, sxx, syx)
    if shortcut and W.shape[1] > 1:
        raise ValueError(
            f"Argument `W` must have n = 1 with shortcuts: the theorems are about chains of layers. Received: shape "
            f"{W.shape}. Pass shortcut=False for a plain network."
        )
    rate = non_negative("learning_rate", learning_rate)
    point = _Point.of(W, sxx, syx, shortcut)
    found = (
        _jacobians(point, rate),
        _dominance(point, rate),
        _balanced(point, rate),
        _zero_asymmetric(point, rate),
        _positive_definite(point, rate),
    )
    return {certificate.theorem: certificate for certificate in found}


class _Point(NamedTuple):
    """layers: (N, d, d). target: R. error: E. smallest: sigma_min(S) over the directions that the inputs span."""

    layers: Floats
    target: Floats
    error: Floats
    smallest: float
    whitened: bool

    @classmethod
    def of(cls, W: Floats, sxx: Floats, syx: Floats, shortcut: bool) -> "_Point":
        layers = as_plain(W, shortcut)
        root, targets = regression(sxx, syx)
        # The columns of the root are orthogonal: their squared norms are the non-zero eigenvalues of S.
        squares = np.sum(root**2, axis=0)
        target = targets / squares @ root.T
        product = layer_jacobians(layers[:, None], shortcut=False).end_to_end
        whitened = bool(np.abs(sxx - np.eye(len(sxx))).max() <= ROUNDING * len(sxx))
        return cls(layers, target, product - target, float(squares.min(initial=np.inf)), whitened)


def _jacobians(point: _Point, rate: float) -> Certificate:
    around = layer_jacobians(point.layers[:, None], shortcut=False)
    after, before = (np.linalg.svd(maps, compute_uv=False)[:, -1] for maps in (around.after, around.before))
    mu = point.smallest * float(np.sum(after**2 * before**2))
    reason = "" if mu > 0 else "for every layer a product of those before or after it is singular"
    return _at_a_point("jacobians", reason, rate, mu)


def _dominance(point: _Point, rate: float) -> Certificate:
    N = len(point.layers)
    tau = float(layer_norms(point.layers - np.eye(len(point.target))).max())
    if tau >= 1:
        return _at_a_point("dominance", f"|||A||| = {tau:.3g} is not below 1", rate, 0.0)
    mu = N * math.exp((2 * N - 2) * math.log1p(-tau)) * point.smallest
    return _at_a_point("dominance", "", rate, mu)


def _at_a_point(theorem: str, reason: str, rate: float, mu: float) -> Certificate:
    # For large rates a step is not a flow, and a share of 1 or more is no promise.
    contraction = -math.expm1(-2 * mu * rate)
    return Certificate(theorem, not reason, reason, "point", contraction, math.nan if reason else math.inf)


def _balanced(point: _Point, rate: float) -> Certificate:
    N = len(point.layers)
    size = float(np.linalg.norm(point.target))
    margin = float(np.linalg.svd(point.target, compute_uv=False)[-1] - np.linalg.norm(point.error))
    delta = balancedness(point.layers[:, None], shortcut=False)
    reason = "" if point.whitened else "the inputs are not whitened"
    if not reason and margin <= 0:
        reason = f"the deficiency margin is {margin:.3g}, not positive"
    if not reason and delta > (allowed := margin**2 / (256 * N**3 * size ** (2 * (N - 1) / N))):
        reason = f"the layers are {delta:.3g}-balanced, {allowed:.3g} is allowed"
    if reason:
        return _not_for_a_run("balanced", reason)
    largest = margin ** ((4 * N - 2) / N) / (6144 * N**3 * size ** ((6 * N - 4) / N))
    return _for_a_run("balanced", rate, largest, rate * margin ** (2 * (N - 1) / N))


def _zero_asymmetric(point: _Point, rate: float) -> Certificate:
    N, d = len(point.layers), len(point.target)
    start = np.array([np.eye(d)] * (N - 1) + [np.zeros((d, d))])
    reason = "" if point.whitened else "the inputs are not whitened"
    if not reason and np.abs(point.layers - start).max() > ROUNDING:
        reason = "the weights are not the zero-asymmetric start"
    if reason:
        return _not_for_a_run("zero-asymmetric", reason)
    u = max(4 * N * float(np.sum(point.target**2)), math.e)
    return _for_a_run("zero-asymmetric", rate, 1 / (4 * N * u), 1.5 * rate)


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
    largest = 1 / ((2 * N - 1) * max(1.0, float(high) ** power))
    return _for_a_run("positive definite", rate, largest, rate * N * min(1.0, float(low) ** power))


def _for_a_run(theorem: str, rate: float, largest: float, contraction: float) -> Certificate:
    if rate > largest:
        reason = f"the rate is {rate:.3g}, at most {largest:.3g} is allowed"
        return Certificate(theorem, False, reason, "run", 0.0, largest)
    return Certificate(theorem, True, "", "run", contraction, largest)


def _not_for_a_run(theorem: str, reason: str) -> Certificate:
    return Certificate(theorem, False, reason, "run", 0.0, math.nan)


def scalar_recursions(eigenvalues: ArrayLike, depth: int, learning_rate: float, steps: int) -> Floats:
    """Gradient descent from the identity towards a symmetric target, in its eigenbasis: one number for each eigenvalue.

    a <- a - rate * a^(l-1) (a^l - lambda), from a = 1, is what every layer does to the eigenvector of lambda; the
    excess risk is sum (a^l - lambda)^2 / 2. For lambda > 0 and a small enough rate a reaches lambda^(1/l); for
    lambda < 0 it only falls to 0, so that the excess risk never falls below `identity_start_barrier`.
    Source: Bartlett, Helmbold & Long (arXiv 1802.06093), for whitened inputs and the identity start.

    Args:
        eigenvalues: of the target, (d,).
        depth: l.
        learning_rate: of L = ||Y - f X||_F^2 / (2m).
        steps: the number of updates.

    Returns:
        (steps + 1, d) float64: a after each number of updates.
    """
    eigenvalues = real_array("eigenvalues", eigenvalues, ("d",))
    depth, rate = positive_integer("depth", depth), non_negative("learning_rate", learning_rate)
    a = np.empty((int(non_negative("steps", steps)) + 1, len(eigenvalues)))
    a[0] = 1.0
    for step in range(len(a) - 1):
        a[step + 1] = a[step] - rate * a[step] ** (depth - 1) * (a[step] ** depth - eigenvalues)
    return a


def identity_start_barrier(R: ArrayLike) -> float:
    """The excess risk below which gradient descent from the identity never falls, for a symmetric target.

    Half the sum of the squares of R's negative eigenvalues; for whitened inputs and a rate below
    1 / (1 + max |lambda|), so that no recursion jumps over zero (see `scalar_recursions`).
    Source: Bartlett, Helmbold & Long (arXiv 1802.06093, abstract) for the failure; the number is from the recursion.

    Args:
        R: (d, d), symmetric.

    Raises:
        ValueError: where R is not symmetric.
    """
    R = real_array("R", R, ("d", "d"))
    if np.abs(R - R.T).max() > ROUNDING * np.abs(R).max():
        raise ValueError(
            f"Argument `R` must be symmetric. Received: a matrix that differs from its transpose by "
            f"{np.abs(R - R.T).max():.3g}. Other targets have no such barrier in closed form."
        )
    return float(np.sum(np.minimum(np.linalg.eigvalsh(R), 0.0) ** 2) / 2)
