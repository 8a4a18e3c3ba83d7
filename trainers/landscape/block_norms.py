"""Norms of residual branches against depth, at initialization and after training, for several initializations."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from idmatters_tf import linear
from trainers.experiments.experiment import Cases, Experiment, Verdict, by_column
from trainers.experiments.panels import add_legend, mark_sizes, offset_sizes, panels
from trainers.landscape.exponents import exponent
from trainers.landscape.settings import Settings
from trainers.landscape.targets import Targets, learning_rate, random_target

DEPTHS = (8, 16, 32, 64)
SEEDS = 3

# Exponent of each quantity in the depth for each start, see `measure`.
EXPECTED = {
    "trained": {"zero": -1.0, "independent / l": -1.0, "smooth / l": -1.0, "independent / sqrt(l)": -0.5},
    "moved": {"zero": -1.0, "independent / l": -1.0, "smooth / l": -1.0, "independent / sqrt(l)": -1.0},
    "roughness": {"zero": -1.5, "independent / l": -0.5, "smooth / l": -1.5, "independent / sqrt(l)": 0.0},
}
TITLES = {
    "map_at_start": "||f - I|| at initialization",
    "trained": "median norm of a branch after training",
    "moved": "median distance moved by a branch",
    "roughness": "(sum of squared differences of neighbors)^(1/2)",
}


@dataclasses.dataclass(frozen=True)
class BlockNormRow:
    """One network.

    Attributes:
        start: one of `STARTS`.
        depth: l.
        seed: seed of target and start.
        risk: f - C after training.
        map_at_start: ||f - I||_F / sqrt(d) of the end-to-end map at the start.
        trained: median spectral norm of the branches A_i after training.
        moved: median spectral norm of the difference between a branch after training and at the start.
        roughness: (sum_i ||A_(i+1) - A_i||_F^2)^(1/2) after training.
    """

    start: str
    depth: int
    seed: int
    risk: float
    map_at_start: float
    trained: float
    moved: float
    roughness: float


Start = Callable[[int, int, np.random.Generator], NDArray[np.float64]]


def _smooth(depth: int, dim: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return a random function of i / l, three terms of a Fourier series, over l."""
    t = (np.arange(depth) + 0.5) / depth
    terms = np.stack([np.ones(depth), np.cos(np.pi * t), np.cos(2 * np.pi * t)])
    return np.einsum("kl,kij->lij", terms, rng.normal(scale=dim**-0.5 / 3**0.5, size=(3, dim, dim))) / depth


STARTS: dict[str, Start] = {
    "zero": lambda depth, dim, rng: np.zeros((depth, dim, dim)),
    "independent / l": lambda depth, dim, rng: rng.normal(scale=dim**-0.5, size=(depth, dim, dim)) / depth,
    "smooth / l": _smooth,
    "independent / sqrt(l)": lambda depth, dim, rng: rng.normal(scale=dim**-0.5, size=(depth, dim, dim)) / depth**0.5,
}


def cases(targets: Targets, settings: Settings) -> Cases:
    """Yield the arguments of `measure` for each start and depth, with random targets."""
    chosen = settings.targets
    if chosen.target or not targets.positive or chosen.dim == 1:
        return
    for start in STARTS:
        for depth in DEPTHS:
            yield start, depth, chosen.dim, min(chosen.condition), SEEDS, max(1, settings.networks.steps // 5)


def measure(start: str, depth: int, dim: int, condition: float, seeds: int, steps: int) -> Iterator[BlockNormRow]:
    """Train residual networks of one depth from one kind of start.

    Marion, Fermanian, Biau & Vert (*Scaling ResNets in the Large-depth Regime*, arXiv 2206.06929): with independent
    random branches, only the scale 1 / sqrt(l) has a limit that is neither the identity nor infinite, a stochastic
    differential equation. With branches that are a smooth function of i / l, this scale is 1 / l, and the limit is an
    ordinary differential equation. Cohen, Cont, Rossier & Xu (*Scaling Properties of Deep Residual Networks*, ICML
    2021) distinguish the two cases in trained networks by the exponent of the norms of branches and by the sum of
    squared differences of neighbors.

    Expected exponents: training moves each of the l branches by l^(-1), smoothly in i. The norm after training is
    therefore l^(-1), or l^(-1/2) from a start of this size. The differences add up to (l l^(-4))^(1/2) = l^(-3/2) from
    a smooth start. From an independent start they remain those of the start, l^(-1/2) at the scale 1 / l and constant
    at 1 / sqrt(l): training does not make a rough network smooth.

    Args:
        start: one of `STARTS`.
        depth: l.
        dim: dimension of the random targets, which have positive determinants.
        condition: condition number of the random targets.
        seeds: number of targets and starts.
        steps: steps of gradient descent.
    """
    for seed in range(seeds):
        R = random_target(dim, condition, 1, seed)
        A = STARTS[start](depth, dim, np.random.default_rng([seed, depth]))
        found = linear.gradient_descent(
            A[None, :, None], np.eye(dim), R, learning_rate(R, depth), steps, record_every=steps
        )
        trained = found.weights[0, :, 0]
        yield BlockNormRow(
            start=start,
            depth=depth,
            seed=seed,
            risk=2 * float(found.excess_risk[0, -1]),
            map_at_start=float(np.linalg.norm(linear.compose(A) - np.eye(dim))) / dim**0.5,
            trained=float(np.median(linear.layer_norms(trained))),
            moved=float(np.median(linear.layer_norms(trained - A))),
            roughness=float(np.linalg.norm(np.diff(trained, axis=0))),
        )


def exponents(rows: Sequence[BlockNormRow], quantity: str) -> dict[str, tuple[float, float, float]]:
    """Return for each start the exponent of a quantity in the depth, with its interval over the seeds."""
    found = {}
    for start, chosen in by_column(rows, "start").items():
        depths, by_seed = sorted(by_column(chosen, "depth")), by_column(chosen, "seed").values()
        values = np.array([[getattr(row, quantity) for row in sorted(one, key=lambda r: r.depth)] for one in by_seed])
        found[start] = exponent(depths, values)
    return found


def verdict(rows: Sequence[BlockNormRow]) -> Verdict:
    """Check that the exponents agree with those derived in `measure` within 0.25."""
    kept, numbers = True, []
    for quantity, expected in EXPECTED.items():
        for start, (slope, low, high) in exponents(rows, quantity).items():
            kept &= abs(slope - expected[start]) < 0.25
            numbers.append(f"{quantity}, {start} {slope:.2f} ({low:.2f} to {high:.2f}, expected {expected[start]:g})")
    return Verdict(kept, "exponents in the depth: " + "; ".join(numbers))


def draw(rows: Sequence[BlockNormRow]) -> Figure:
    """Draw each quantity against depth, with the expected slopes as dotted lines through the first depth."""
    figure, axes = panels(len(TITLES))
    for each, (quantity, title) in zip(axes, TITLES.items(), strict=True):
        for number, (start, chosen) in enumerate(by_column(rows, "start").items()):
            by_depth = by_column(chosen, "depth")
            depths = np.array(sorted(by_depth), float)
            means = np.array([np.mean([getattr(row, quantity) for row in by_depth[depth]]) for depth in depths])
            if not means.all():
                continue
            each.loglog(offset_sizes(depths, number), means, "o-", color=f"C{number}", markersize=4, label=start)
            if quantity in EXPECTED:
                law = means[0] * (depths / depths[0]) ** EXPECTED[quantity][start]
                each.loglog(offset_sizes(depths, number), law, color=f"C{number}", linestyle=":")
        mark_sizes(each, sorted(by_column(rows, "depth")))
        each.set(title=title, xlabel="depth l")
    add_legend(figure)
    return figure


EXPERIMENT = Experiment("block_norms", cases, measure, {"block_norms": draw}, verdict)
