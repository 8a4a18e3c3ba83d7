"""Largest stable learning rate against depth and its exponent, for each kind of network and initialization."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.experiment import Cases, Experiment, Verdict, by_column
from trainers.experiments.panels import add_legend, mark_sizes, offset_sizes, panels
from trainers.landscape.exponents import LawRow, compare_exponents, law_rows, mean_rates
from trainers.landscape.settings import Settings
from trainers.landscape.targets import Targets, random_target

# Multiples of the numbers of layers per unit.
DEPTHS = (6, 12, 24, 48)
SEEDS = 3
# Eight to a decade.
RATES = np.logspace(-3.5, 1, 37)
# Number of last steps in which the risk of a stable network must not increase, except by rounding.
LAST, ROUNDING = 10, 1e-12


@dataclasses.dataclass(frozen=True)
class Kind:
    """Kind of network with its start.

    Attributes:
        start: see `linear.initial_weights`.
        shortcut_depth: number of layers per unit.
        shortcut: True if each unit adds its input.
        law: expected exponent, see `measure`; None if there is no argument for one.
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


def cases(targets: Targets, settings: Settings) -> Cases:
    """Yield the arguments of `measure` for each kind of network, with random targets."""
    chosen = settings.targets
    if chosen.target or not targets.positive:
        return
    condition = min(chosen.condition) if chosen.dim > 1 else 1.0
    for name in KINDS:
        yield name, chosen.dim, condition, DEPTHS, SEEDS, max(1, settings.networks.steps // 3)


def measure(name: str, dim: int, condition: float, depths: Sequence[int], seeds: int, steps: int) -> list[LawRow]:
    """Find the largest of `RATES` up to which descent settles.

    Descent settles if it does not diverge, and if at the end the risk no longer increases. At a rate above 2 /
    sharpness the risk may stay bounded, but it oscillates forever.

    Expected exponents for units of n layers with shortcuts: if all l / n units contribute equally to R, each unit is
    I + O(n / l) and each of its layers has norm (n / l)^(1/n). The derivative of the map with respect to a layer has
    size (n / l)^((n-1)/n), and the largest eigenvalue of the Hessian is the sum of l of its squares, l^((2-n)/n). The
    largest stable rate is proportional to l^((n-2)/n): it decreases for n = 1 and is constant for n = 2. Plain networks
    with orthogonal layers or the identity behave as those with n = 1. For n = 3, a small start grows to infinity in
    finite time, with the largest unit first. A few units then make up all of R, the same number at every depth, and the
    rate is again constant.

    Args:
        name: one of `KINDS`.
        dim: dimension of the random targets, which have positive determinants.
        condition: condition number of the random targets.
        depths: layers, multiples of 6.
        seeds: number of targets and starts.
        steps: steps of gradient descent.
    """
    kind = KINDS[name]

    def rate(depth: int, seed: int) -> float:
        return _largest_stable_rate(kind, depth, random_target(dim, condition, 1, seed), seed, steps)

    return law_rows(name, depths, seeds, rate, kind.law)


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
    # Some larger rates also settle: they move the weights far away, where the landscape is flat.
    return float(RATES[max(int(np.argmin(settled)) - 1, 0)])


def verdict(rows: Sequence[LawRow]) -> Verdict:
    """Check that the measured exponents agree with those derived in `measure` within 0.25."""
    return compare_exponents(rows, "the largest stable rate", 0.25)


def draw(rows: Sequence[LawRow]) -> Figure:
    """Draw the rates against depth with the fitted laws, and the exponents with their intervals."""
    figure, (rates, slopes) = panels(2)
    depths, kinds = np.array(sorted(by_column(rows, "depth")), float), by_column(rows, "kind")
    for number, (kind, chosen) in enumerate(kinds.items()):
        row, means, color = chosen[0], mean_rates(chosen), f"C{number}"
        rates.loglog(offset_sizes(depths, number), means, "o", color=color, markersize=4)
        fit = np.exp(np.log(means).mean()) * (depths / np.exp(np.log(depths).mean())) ** row.slope
        rates.loglog(offset_sizes(depths, number), fit, color=color, label=kind)
        interval = [[row.slope - row.low], [row.high - row.slope]]
        slopes.errorbar(row.slope, number, xerr=interval, fmt="o", color=color, capsize=3)
        if row.law is not None:
            slopes.plot(row.law, number, "k|", markersize=16, label="expected" if number == 0 else None)
    # The law of the rate of a first step of constant size, arXiv 2602.07494: see `trainers.landscape.update_laws`.
    reference = max(row.rate for row in rows) * (depths / depths[0]) ** -1.5
    rates.loglog(depths, reference, "k:", linewidth=1, label="depth^(-3/2)")
    mark_sizes(rates, depths)
    rates.set(xlabel="depth, layers", title="largest stable learning rate")
    slopes.set_yticks(range(len(kinds)), list(kinds))
    slopes.set_title("exponent in the depth, 95 % interval")
    add_legend(figure, columns=7)
    return figure


EXPERIMENT = Experiment("depth_laws", cases, measure, {"depth_laws": draw}, verdict)
