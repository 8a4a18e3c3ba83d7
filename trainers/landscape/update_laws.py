"""The learning rate of a first step of constant size against depth: the law depth^(-3/2), and where it holds."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.panels import add_legend, by_column, panels
from trainers.experiments.registry import Counter, Experiment, ProgressCallback, Verdict, silent
from trainers.landscape.depth_laws import exponent
from trainers.landscape.settings import Settings
from trainers.landscape.targets import Targets

WIDTH, DRAWS, SEEDS = 128, 8, 4
DEPTHS = (8, 16, 32, 64)

# What the layers are.
KINDS = ("xavier", "orthogonal", "identity", "residual")


@dataclasses.dataclass(frozen=True)
class UpdateLawRow:
    """One kind of network at one depth with one start.

    Attributes:
        kind: of `KINDS`.
        depth: layers.
        seed: of the start.
        rate: with which the mean square of the first step's change of all layers' outputs is 1.
        slope, low, high: the exponent of rate ~ depth^slope, mean and 95 % interval over the seeds.
        law: the exponent of `wide_rate` over the same depths.
    """

    kind: str
    depth: int
    seed: int
    rate: float
    slope: float
    low: float
    high: float
    law: float


def start(kind: str, depth: int, width: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Layers (depth, width, width) of a plain network.

    "residual" is I + N(0, 1 / (width depth)): the scale 1 / sqrt(depth) at which independent random branches neither
    explode nor vanish (Marion, Fermanian, Biau & Vert, arXiv 2206.06929).
    """
    if kind in ("identity", "orthogonal"):
        return linear.initial_weights(kind, depth, 1, width, seed=int(rng.integers(2**31)))[:, 0]
    normal = rng.normal(scale=width**-0.5, size=(depth, width, width))
    return normal if kind == "xavier" else np.eye(width) + normal / depth**0.5


def constant_update_rate(W: NDArray[np.float64], rng: np.random.Generator, draws: int) -> float:
    """The rate eta at which one step changes the outputs of the layers by 1 in mean square, to first order in eta.

    For an input x and an output error e, both N(0, I) with |x|^2 and |e|^2 scaled to the width d and to 1, layer k's
    gradient is delta_k h_(k-1)^T, and z_l changes by -eta sum_(k <= l) W_l ... W_(k+1) delta_k |h_(k-1)|^2. The mean
    square is over the layers l, the d entries of z_l and the draws of x and e; with |e|^2 = 1 an entry of e is of
    size 1 / sqrt(d), as a gradient with respect to a single unit of the next layer.

    Args:
        W: (depth, d, d), of a plain network.
        rng: of x and e.
        draws: how many.
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
    """The rate for infinite width: the sums of `measure` in closed form; for "residual" up to a constant.

    Example: the ratio from a depth of 1,000 to 2,000 is 2^(-3/2) and 2^(-1).

    >>> [round(float(wide_rate(kind, 2000) / wide_rate(kind, 1000)), 3) for kind in ("xavier", "orthogonal")]
    [0.354, 0.5]
    """
    if kind == "xavier":
        return (12 / ((depth + 1) ** 2 * (depth + 2))) ** 0.5
    return (6 / ((depth + 1) * (2 * depth + 1))) ** 0.5


def measure(
    depths: Sequence[int], width: int, seeds: int, draws: int, progress: ProgressCallback = silent
) -> list[UpdateLawRow]:
    """The rate of constant update of each kind of network at each depth.

    Source of the law depth^(-3/2): *Hyperparameter Transfer Laws for Non-Recurrent Multi-Path Neural Networks* (arXiv
    2602.07494), of which the abstract was at hand: the rate that maximises the typical one-step change at the start
    falls with the effective depth to the power -3/2. Where that comes from in linear networks: with square Gaussian
    layers M = W_l ... W_(k+1) has E M M^T = I, but E tr (M M^T)^2 / d = l - k + 1 for large d (Fuss-Catalan numbers),
    so that the changes that come through different layers add up to sum_(k, k' <= l) (min(l - k, l - k') + 1) ~ l^3 / 3
    instead of l^2: the rate is depth^(-3/2) for large depths. With orthogonal layers, or the identity, M M^T = I, the
    sum is l^2 and the rate is depth^(-1); and so it is, up to a constant, for residual branches of size depth^(-1/2),
    whose M M^T stay bounded.

    Args:
        depths: of the networks.
        width: d; the laws are for widths far above the depth.
        seeds: how many starts.
        draws: of inputs and errors for each start.
        progress: is told of each piece of work done.
    """
    rows, counter = [], Counter(progress, "update laws", len(KINDS))
    for kind in KINDS:
        law = exponent(depths, np.array([[wide_rate(kind, depth) for depth in depths]]))[0]
        rates = np.empty((seeds, len(depths)))
        for seed in range(seeds):
            for place, depth in enumerate(depths):
                rng = np.random.default_rng([seed, depth])
                rates[seed, place] = constant_update_rate(start(kind, depth, width, rng), rng, draws)
        slope, low, high = exponent(depths, rates)
        rows += [
            UpdateLawRow(kind, depth, seed, float(rates[seed, place]), slope, low, high, law)
            for place, depth in enumerate(depths)
            for seed in range(seeds)
        ]
        counter.advance()
    return rows


def verdict(rows: Sequence[UpdateLawRow]) -> Verdict:
    """The claim: the exponents are those of `wide_rate`, within 0.2."""
    kinds = {kind: of_kind[0] for kind, of_kind in by_column(rows, "kind").items()}
    numbers = "; ".join(
        f"{kind} {row.slope:.2f} ({row.low:.2f} to {row.high:.2f}, expected {row.law:.2f})"
        for kind, row in kinds.items()
    )
    return Verdict(
        all(abs(row.slope - row.law) < 0.2 for row in kinds.values()),
        f"exponents of the rate of constant update in the depth: {numbers}",
    )


def draw(rows: Sequence[UpdateLawRow]) -> Figure:
    """The rates against depth, and the two laws as dotted lines."""
    figure, (axes,) = panels(1)
    depths = np.array(sorted(by_column(rows, "depth")), float)
    for number, (kind, of_kind) in enumerate(by_column(rows, "kind").items()):
        by_depth = by_column(of_kind, "depth")
        means = [np.exp(np.mean([np.log(row.rate) for row in by_depth[depth]])) for depth in sorted(by_depth)]
        # A little to the side, so that no curve hides another.
        axes.loglog(depths * 1.02 ** (number - 1.5), means, "o-", color=f"C{number}", markersize=4, label=kind)
    first = max(row.rate for row in rows)
    for law, style in ((-1.0, "k:"), (-1.5, "k--")):
        axes.loglog(depths, 1.3 * first * (depths / depths[0]) ** law, style, linewidth=1, label=f"depth^({law:g})")
    axes.set_xticks(depths, [f"{depth:g}" for depth in depths])
    axes.minorticks_off()
    axes.set_xlabel("depth, layers", fontsize=9)
    axes.set_ylabel("rate of a first step of constant size", fontsize=9)
    add_legend(figure, columns=3)
    return figure


def _run(targets: Targets, settings: Settings, progress: ProgressCallback) -> list[UpdateLawRow]:
    if settings.targets.target:
        return []
    return measure(DEPTHS, WIDTH, SEEDS, DRAWS, progress)


EXPERIMENT = Experiment("update_laws", UpdateLawRow, _run, {"update_laws": draw}, verdicts=lambda rows: [verdict(rows)])
