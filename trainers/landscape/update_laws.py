"""Learning rate of a first step of constant size against depth, and the validity of the law depth^(-3/2)."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.experiment import Cases, Experiment, Verdict, by_column
from trainers.experiments.panels import add_legend, mark_sizes, offset_sizes, panels
from trainers.landscape.exponents import LawRow, compare_exponents, exponent, law_rows, mean_rates
from trainers.landscape.settings import Settings
from trainers.landscape.targets import Targets

WIDTH, DRAWS, SEEDS = 128, 8, 4
DEPTHS = (8, 16, 32, 64)

# Kinds of layers.
KINDS = ("xavier", "orthogonal", "identity", "residual")


def cases(targets: Targets, settings: Settings) -> Cases:
    """Yield the arguments of `measure` for each kind of network, the same for all random targets."""
    if not settings.targets.target:
        for kind in KINDS:
            yield kind, DEPTHS, WIDTH, SEEDS, DRAWS


def start(kind: str, depth: int, width: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the layers (depth, width, width) of a plain network.

    "residual" is I + N(0, 1 / (width depth)), with the scale 1 / sqrt(depth) at which independent random branches
    neither explode nor vanish (Marion, Fermanian, Biau & Vert, arXiv 2206.06929).
    """
    if kind in ("identity", "orthogonal"):
        return linear.initial_weights(kind, depth, 1, width, seed=int(rng.integers(2**31)))[:, 0]
    normal = rng.normal(scale=width**-0.5, size=(depth, width, width))
    return normal if kind == "xavier" else np.eye(width) + normal / depth**0.5


def constant_update_rate(W: NDArray[np.float64], rng: np.random.Generator, draws: int) -> float:
    """Compute the rate eta at which one step changes the layers' outputs by 1 in mean square, to first order in eta.

    For an input x and an output error e, both N(0, I) with |x|^2 and |e|^2 scaled to the width d and to 1, layer k's
    gradient is delta_k h_(k-1)^T, and z_l changes by -eta sum_(k <= l) W_l ... W_(k+1) delta_k |h_(k-1)|^2. The mean
    square is over the layers l, the d entries of z_l and the draws of x and e. With |e|^2 = 1, an entry of e has size
    1 / sqrt(d), as a gradient with respect to a single unit of the next layer.

    Args:
        W: (depth, d, d), layers of a plain network.
        rng: generator of x and e.
        draws: number of draws of x and e.
    """
    depth, d = len(W), W.shape[1]
    x, error = rng.normal(size=(2, d, draws))
    hidden, delta = [x / np.linalg.norm(x, axis=0) * d**0.5], [error / np.linalg.norm(error, axis=0)]
    for layer in W:
        hidden.append(layer @ hidden[-1])
    for layer in W[:0:-1]:
        delta.append(layer.T @ delta[-1])
    change, total = np.zeros((d, draws)), 0.0
    for k, (layer, back) in enumerate(zip(W, reversed(delta), strict=True)):
        change = layer @ change + back * np.sum(hidden[k] ** 2, axis=0) / d
        total += float(np.mean(change**2)) * d
    return (depth / total) ** 0.5


def wide_rate(kind: str, depth: int) -> float:
    """Return the rate for infinite width, the closed form of the sums in `measure`; for "residual" up to a constant.

    From depth 1,000 to 2,000, the rate changes by the factor 2^(-3/2) or 2^(-1):

    >>> [round(float(wide_rate(kind, 2000) / wide_rate(kind, 1000)), 3) for kind in ("xavier", "orthogonal")]
    [0.354, 0.5]
    """
    if kind == "xavier":
        return (12 / ((depth + 1) ** 2 * (depth + 2))) ** 0.5
    return (6 / ((depth + 1) * (2 * depth + 1))) ** 0.5


def measure(kind: str, depths: Sequence[int], width: int, seeds: int, draws: int) -> list[LawRow]:
    """Compute the rate of constant update of one kind of network at each depth.

    Source of the law depth^(-3/2): *Hyperparameter Transfer Laws for Non-Recurrent Multi-Path Neural Networks* (arXiv
    2602.07494; only the abstract was available): the rate that maximizes the typical one-step change at the start is
    proportional to the effective depth to the power -3/2. Derivation for linear networks: with square Gaussian layers,
    M = W_l ... W_(k+1) has E M M^T = I, but E tr (M M^T)^2 / d = l - k + 1 for large d (Fuss-Catalan numbers). The
    changes through different layers therefore add up to sum_(k, k' <= l) (min(l - k, l - k') + 1) ~ l^3 / 3 instead of
    l^2, and the rate is depth^(-3/2) for large depths. With orthogonal layers, or the identity, M M^T = I, the sum is
    l^2 and the rate is depth^(-1). The same holds, up to a constant, for residual branches of size depth^(-1/2), for
    which M M^T is bounded.

    Args:
        kind: one of `KINDS`.
        depths: layers.
        width: d; the laws hold for widths far above the depth.
        seeds: number of starts.
        draws: number of inputs and errors for each start.
    """
    law = exponent(depths, np.array([[wide_rate(kind, depth) for depth in depths]]))[0]

    def rate(depth: int, seed: int) -> float:
        rng = np.random.default_rng([seed, depth])
        return constant_update_rate(start(kind, depth, width, rng), rng, draws)

    return law_rows(kind, depths, seeds, rate, law)


def verdict(rows: Sequence[LawRow]) -> Verdict:
    """Check that the exponents agree with those of `wide_rate` within 0.2."""
    return compare_exponents(rows, "the rate of constant update", 0.2)


def draw(rows: Sequence[LawRow]) -> Figure:
    """Draw the rates against depth, and the two laws as black lines."""
    figure, (axes,) = panels(1)
    depths = np.array(sorted(by_column(rows, "depth")), float)
    for number, (kind, chosen) in enumerate(by_column(rows, "kind").items()):
        axes.loglog(
            offset_sizes(depths, number), mean_rates(chosen), "o-", color=f"C{number}", markersize=4, label=kind
        )
    first = max(row.rate for row in rows)
    for law, style in ((-1.0, "k:"), (-1.5, "k--")):
        axes.loglog(depths, 1.3 * first * (depths / depths[0]) ** law, style, linewidth=1, label=f"depth^({law:g})")
    mark_sizes(axes, depths)
    axes.set(xlabel="depth, layers", ylabel="rate of a first step of constant size")
    add_legend(figure, columns=3)
    return figure


EXPERIMENT = Experiment("update_laws", cases, measure, {"update_laws": draw}, verdict)
