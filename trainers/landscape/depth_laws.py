"""The largest stable learning rate against depth, for each kind of network and start, and the exponent of its law."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.stats
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.panels import add_legend, by_column, panels
from trainers.experiments.registry import Counter, Experiment, ProgressCallback, Verdict, silent
from trainers.landscape.settings import Settings
from trainers.landscape.targets import Targets, random_target

# Multiples of the layers in every unit.
DEPTHS = (6, 12, 24, 48)
SEEDS = 3
# Eight to a decade.
RATES = np.logspace(-3.5, 1, 37)
# In the last so many steps the risk of a stable network may not rise, beyond rounding.
LAST, ROUNDING = 10, 1e-12


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of network with its start.

    Attributes:
        start: see `linear.initial_weights`.
        shortcut_depth: the layers of a unit.
        shortcut: whether each unit adds its input.
        law: the exponent to expect, see `measure`; None where there is no argument for one.
    """

    start: str
    shortcut_depth: int
    shortcut: bool
    law: float | None


KINDS = {
    "1-shortcut": Kind("small", 1, True, -1.0),
    "2-shortcut": Kind("small", 2, True, 0.0),
    "3-shortcut": Kind("small", 3, True, 0.0),
    "identity": Kind("identity", 1, False, -1.0),
    "orthogonal": Kind("orthogonal", 1, False, -1.0),
    "xavier": Kind("xavier", 1, False, None),
}


@dataclasses.dataclass(frozen=True)
class DepthLawRow:
    """One kind of network at one depth with one start.

    Attributes:
        kind: of `KINDS`.
        depth: in layers.
        seed: of target and start.
        rate: the largest rate at which descent is stable.
        slope, low, high: the exponent of rate ~ depth^slope of this kind, mean and 95 % interval over the seeds; the
            same in all its rows.
        law: the exponent that theory suggests; None where there is none.
    """

    kind: str
    depth: int
    seed: int
    rate: float
    slope: float
    low: float
    high: float
    law: float | None


def measure(
    dim: int, condition: float, depths: Sequence[int], seeds: int, steps: int, progress: ProgressCallback = silent
) -> list[DepthLawRow]:
    """The largest of `RATES` up to which descent settles: it does not diverge, and at the end the risk no longer rises.

    At a rate above 2 / sharpness the risk may stay bounded, but it rises and falls for ever.

    What to expect of units of n layers with shortcuts: if all of the l / n units take an equal part of the way from I
    to R, each is I + O(n / l) and each of its layers has norm (n / l)^(1/n). The derivative of the map with respect to
    a layer then has size (n / l)^((n-1)/n), the largest eigenvalue of the Hessian is the sum of l squares of that,
    l^((2-n)/n), and the largest stable rate grows like l^((n-2)/n): it falls for n = 1 and is constant for n = 2. Plain
    networks with orthogonal layers or the identity are as those with n = 1. For n = 3 a small start grows to infinity
    in finite time, the largest unit first, so that a few units take all of the way, as many at every depth: again a
    constant.

    Args:
        dim, condition: of the random targets, which have positive determinants.
        depths: in layers, multiples of 6.
        seeds: how many targets and starts.
        steps: of gradient descent.
        progress: is told of each piece of work done.
    """
    found: dict[str, NDArray[np.float64]] = {}
    counter = Counter(progress, "depth laws", len(KINDS) * len(depths))
    targets = [random_target(dim, condition, 1, seed) for seed in range(seeds)]
    for name, kind in KINDS.items():
        rates = np.empty((seeds, len(depths)))
        for place, depth in enumerate(depths):
            for seed, R in enumerate(targets):
                rates[seed, place] = _largest_stable_rate(kind, depth, R, seed, steps)
            counter.advance()
        found[name] = rates
    rows = []
    for name, rates in found.items():
        slope, low, high = exponent(depths, rates)
        rows += [
            DepthLawRow(name, depth, seed, float(rates[seed, place]), slope, low, high, KINDS[name].law)
            for place, depth in enumerate(depths)
            for seed in range(seeds)
        ]
    return rows


def _largest_stable_rate(kind: Kind, depth: int, R: NDArray[np.float64], seed: int, steps: int) -> float:
    units = depth // kind.shortcut_depth
    start = linear.initial_weights(kind.start, units, kind.shortcut_depth, len(R), seed=seed)
    networks = np.repeat(start[None], len(RATES), axis=0)
    moments = np.eye(len(R)), R
    found = linear.gradient_descent(networks, *moments, RATES, steps, kind.shortcut, record_every=steps)
    finite = np.flatnonzero(found.diverged_at < 0)
    last = linear.gradient_descent(found.weights[finite], *moments, RATES[finite], LAST, kind.shortcut)
    rise = np.diff(last.excess_risk, axis=1).max(axis=1)
    settled = np.zeros(len(RATES), bool)
    settled[finite] = rise <= ROUNDING * found.excess_risk[finite, 0]
    # Beyond the first that does not, some settle all the same: thrown far off, where the landscape is flat.
    return float(RATES[max(int(np.argmin(settled)) - 1, 0)])


def exponent(depths: Sequence[int], rates: NDArray[np.float64]) -> tuple[float, float, float]:
    """The slope of log rate against log depth, by least squares for each seed.

    Args:
        depths: (depths,).
        rates: (seeds, depths).

    Returns:
        (mean, low, high): over the seeds, with Student's 95 % interval; without width for a single seed.
    """
    x = np.log(depths) - np.log(depths).mean()
    slopes = np.log(rates) @ x / (x @ x)
    mean, seeds = float(slopes.mean()), len(slopes)
    if seeds == 1:
        return mean, mean, mean
    half = float(scipy.stats.t.ppf(0.975, seeds - 1) * slopes.std(ddof=1) / np.sqrt(seeds))
    return mean, mean - half, mean + half


def verdict(rows: Sequence[DepthLawRow]) -> Verdict:
    """The claim: the measured exponents are those of the argument in `measure`, within 0.25."""
    kinds = {kind: of_kind[0] for kind, of_kind in by_column(rows, "kind").items()}
    numbers = "; ".join(
        f"{kind} {row.slope:.2f} ({row.low:.2f} to {row.high:.2f}"
        + (")" if row.law is None else f", expected {row.law:.2f})")
        for kind, row in kinds.items()
    )
    seen = all(abs(row.slope - row.law) < 0.25 for row in kinds.values() if row.law is not None)
    return Verdict(seen, f"exponents of the largest stable rate in the depth: {numbers}")


def draw(rows: Sequence[DepthLawRow]) -> Figure:
    """The rates against depth with the fitted laws, and the exponents with their intervals."""
    figure, (rates, slopes) = panels(2)
    depths = np.array(sorted(by_column(rows, "depth")), float)
    for number, (kind, of_kind) in enumerate(by_column(rows, "kind").items()):
        by_depth = by_column(of_kind, "depth")
        means = np.array([np.exp(np.mean([np.log(row.rate) for row in by_depth[depth]])) for depth in depths])
        # A little to the side, so that no curve hides another.
        shifted = depths * 1.03 ** (number - 2)
        rates.loglog(shifted, means, "o", color=f"C{number}", markersize=4)
        fit = np.exp(np.log(means).mean()) * (depths / np.exp(np.log(depths).mean())) ** of_kind[0].slope
        rates.loglog(shifted, fit, color=f"C{number}", label=kind)
        row = of_kind[0]
        slopes.errorbar(
            row.slope,
            number,
            xerr=[[row.slope - row.low], [row.high - row.slope]],
            fmt="o",
            color=f"C{number}",
            capsize=3,
        )
        if row.law is not None:
            slopes.plot(row.law, number, "k|", markersize=16, label="expected" if number == 0 else None)
    # The law of the rate of a first step of constant size, arXiv 2602.07494: see `trainers.landscape.update_laws`.
    reference = max(row.rate for row in rows) * (depths / depths[0]) ** -1.5
    rates.loglog(depths, reference, "k:", linewidth=1, label="depth^(-3/2)")
    all_depths = sorted(by_column(rows, "depth"))
    rates.set_xticks(all_depths, [f"{depth:g}" for depth in all_depths])
    rates.minorticks_off()
    rates.set_xlabel("depth, layers", fontsize=9)
    rates.set_title("largest stable learning rate", fontsize=9)
    slopes.set_yticks(range(len(by_column(rows, "kind"))), list(by_column(rows, "kind")))
    slopes.set_title("its exponent in the depth, 95 % interval", fontsize=9)
    add_legend(figure, columns=7)
    return figure


def _run(targets: Targets, settings: Settings, progress: ProgressCallback) -> list[DepthLawRow]:
    chosen = settings.targets
    if chosen.target or not targets.positive:
        return []
    condition = min(chosen.condition) if chosen.dim > 1 else 1.0
    return measure(chosen.dim, condition, DEPTHS, SEEDS, max(1, settings.networks.steps // 3), progress)


EXPERIMENT = Experiment("depth_laws", DepthLawRow, _run, {"depth_laws": draw}, verdicts=lambda rows: [verdict(rows)])
