"""Claim: at the learning rate of 4 residual blocks, 32 blocks scaled by `scale_depth` train as well as 4.

    python benchmarks/depth_transfer.py --block pre-norm --optimizer adamw [--out runs/depth/pre-norm/adamw]
    python benchmarks/depth_transfer.py --block pre-norm --optimizer adamw --measure curves --width 64 --length 32 \
        --batch-size 4 --steps 2000 --seeds 1 --depths 4 16
    python benchmarks/depth_transfer.py --block standard --optimizer momentum --measure starts
    python benchmarks/depth_transfer.py --page runs/depth

The first command measures a case, the second one the longer training, and the third one training from weights that are
correlated over the depth. They run on JAX. The last command rewrites
the tables of docs/reference/results/depth.md and depth_cases.md from the results below a folder.

Definitions, fixed before the first measurement:

- Cases: eight types of blocks (near-identity, standard, pre-activation, convnext, pre-norm, gated, mlp, mixer) with
  SGD with momentum, AdamW and Muon, 24 in all. Width 16 for convolutions and 32 for others. Batches of 8 built-in
  images or sequences of 8 bytes (mixer: 16, mlp: 32), 100 steps, two seeds of initial weights and batches. All
  trainings of a seed have the same batches, and the same weights before the scale.
- The loss of a training is the mean over its last fifth; that at a rate is the mean over the seeds, infinite if one
  of them is not finite or above twice the first loss. The decrease is the first loss of the network minus the lowest
  loss.
- The rate r of depth 4 is that of the lowest loss among powers of 2 times that of `STARTS`: three neighbors, then
  further ones until the lowest loss is inside, up to a factor of 32. Depths 16, 32 and 64 are trained as they are,
  and by `scale_depth(model, base)` with alpha 1 and 1/2, where `base` is the number of sums at depth 4: at r, and for
  their own best rates at r times powers of 2, searched for in the same way at depth 32; at 16 and 64 only r / 2, r
  and 2 r. Networks as they are also have r sqrt(4 / depth), the rule that a user would try first.
- "transfers": the loss at r is at most 5 % of the decrease above the lowest loss. "not worse": the loss at r is not
  above the loss of depth 4 at r. Goals: each in 20 of 24 cases at depth 32 with alpha 1.
- Starts: depth 32 with alpha 1 and 1/2, at r and for their own best rates. The kernels of the blocks are independent,
  or correlated over the depth as exp(-(10 k / 32)^2 / 2) at a distance of k blocks ("smooth"), or equal ("equal").
- Long test: pre-norm blocks, AdamW, depths 4 and 16, 2,000 steps at the rate that is best for depth 4 in 200 steps.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

if __name__ == "__main__":
    # Whatever the backend of the program that starts it.
    os.environ["KERAS_BACKEND"] = "jax"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import keras
import numpy as np
from numpy.typing import NDArray

from harness.blocks import BLOCKS, CONVOLUTIONS, OPTIMIZERS, Problem, load
from harness.depth_tables import SEARCHED, write_pages
from harness.stacked import Stack
from idmatters_tf.depth import scale_depth
from idmatters_tf.linear.depth_limit import Kind, depth_correlations

STARTS: Mapping[str, float] = {"momentum": 0.02, "adamw": 0.004, "muon": 0.02}
LAST, FURTHEST, TOLERANCE = 0.2, 5, 0.05
MEASURES = ("scaling", "curves", "starts")
# Scales by name: exponents of `scale_depth`; None for networks as they are.
ALPHAS: Mapping[str, float | None] = {"unscaled": None, "alpha 1": 1.0, "alpha 1/2": 0.5}


class Networks:
    """Trainings of one case: a type of blocks and an optimizer, at any depth and scale.

    Args:
        problem: type of blocks with its data.
        optimizer: name in `OPTIMIZERS`.
        base: depth of the shallow network.
        deepest: largest depth.
        steps, batch_size, seeds: see the definitions.
    """

    def __init__(
        self, problem: Problem, optimizer: str, base: int, deepest: int, steps: int, batch_size: int, seeds: int
    ):
        self._problem, self._optimizer, self.base = problem, optimizer, base
        self._models, self.batches = [], []
        for seed in range(seeds):
            keras.utils.set_random_seed(seed)
            self._models.append(problem.build(deepest))
            rng = np.random.default_rng(seed)
            rows = rng.integers(0, len(problem.train_x), (steps, batch_size))
            self.batches.append((problem.train_x[rows], problem.train_y[rows]))

    def trainings(
        self, depth: int, alpha: float | None, start: Kind = "independent"
    ) -> Callable[[float], NDArray[np.float64]]:
        """Return a function of a rate that returns the losses of all steps, (seeds, steps).

        `start` is the correlation of the blocks' kernels over the depth, see the definitions.
        """
        keras.utils.set_random_seed(0)
        single = self._problem.build(1)
        optimizer: Any = OPTIMIZERS[self._optimizer](1.0)
        stack = Stack(single, ("block0", "block1"))
        values = [stack.values(model, depth) for model in self._models]
        if start != "independent":
            root = square_root(depth_correlations(start, depth, 0.1))
            values = [
                [
                    # Kernels alone are random, and have an axis for the depth.
                    np.tensordot(root, value, 1).astype(value.dtype) if is_inside and value.ndim > 2 else value
                    for value, is_inside in zip(each, stack.is_inside, strict=True)
                ]
                for each in values
            ]
        if alpha is not None:
            optimizer = scale_depth(single, self.base, optimizer, alpha)
            found = optimizer.depth_scaling
            sums = found.sums
            optimizer.depth_scaling = dataclasses.replace(found, base=self.base * sums, sums=depth * sums)
            last = {weight.path for weight in found.weights if weight.use == "last"}
            factors = [optimizer.depth_scaling.scale if v.path in last else 1.0 for v in single.variables]
            values = [[np.float32(f) * v for f, v in zip(factors, each, strict=True)] for each in values]
        train = stack.losses(optimizer, self._problem.loss, depth)

        pairs = list(zip(values, self.batches, strict=True))
        return lambda rate: np.array([train(each, rate, batches) for each, batches in pairs], np.float64)

    def losses(
        self, depth: int, alpha: float | None, start: Kind = "independent"
    ) -> Callable[[float], NDArray[np.float64]]:
        """Return a function of a rate that returns the first loss and that after training, (2, seeds)."""
        train = self.trainings(depth, alpha, start)

        def measure(rate: float) -> NDArray[np.float64]:
            losses = train(rate)
            after = losses[:, -max(1, int(LAST * losses.shape[1])) :].mean(axis=1)
            return np.array([losses[:, 0], np.where(after <= 2 * losses[:, 0], after, np.inf)])

        return measure


def square_root(correlations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the symmetric square root of the matrix of the correlations at the distances 0, 1, ..."""
    distances = np.abs(np.subtract.outer(np.arange(len(correlations)), np.arange(len(correlations))))
    values, vectors = np.linalg.eigh(correlations[distances])
    return vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T


def search(
    measure: Callable[[float], NDArray[np.float64]], start: float, furthest: int = FURTHEST
) -> dict[float, NDArray[np.float64]]:
    """Return losses by rate, for rates around the one with the lowest mean loss after training."""
    tried: dict[int, NDArray[np.float64]] = {}

    def attempt(power: int) -> None:
        tried[power] = measure(start * 2.0**power)

    def best() -> int:
        """Return the power of the lowest loss; the smallest one if all are infinite."""
        return min(sorted(tried), key=lambda power: tried[power][1].mean())

    for power in (0, -1, 1):
        attempt(power)
    while best() in (min(tried), max(tried)) and abs(best()) < furthest:
        attempt(best() + (1 if best() == max(tried) else -1))
    return {start * 2.0**power: tried[power] for power in sorted(tried)}


def measure_case(
    networks: Networks,
    depths: Sequence[int],
    optimizer: str,
    report: Callable[[str], None],
    starts: Sequence[Kind] = (),
) -> Iterator[list[dict[str, Any]]]:
    """Yield the losses of all trainings as rows, after each depth: the base first, then 32, which the goals concern.

    With `starts`, depth 32 alone is trained, scaled and from each of them.
    """
    rows: list[dict[str, Any]] = []
    base = networks.base

    def record(depth: int, scale: str, rate: float, losses: NDArray[np.float64]) -> None:
        for seed, (first, loss) in enumerate(losses.T):
            rows.append({"depth": depth, "scale": scale, "rate": rate, "seed": seed, "first_loss": first, "loss": loss})
        report(f"depth {depth}, {scale}, rate {rate:.3g}: loss {losses[1].mean():.4f}")

    found = search(networks.losses(base, None), STARTS[optimizer])
    for rate, losses in found.items():
        record(base, "unscaled", rate, losses)
    yield rows
    shallow = min(found, key=lambda rate: found[rate][1].mean())
    for start in starts:
        for scale, alpha in (("alpha 1", 1.0), ("alpha 1/2", 0.5)):
            for rate, losses in search(networks.losses(SEARCHED, alpha, start), shallow).items():
                record(SEARCHED, f"{scale}, {start}", rate, losses)
        yield rows
    for depth in () if starts else sorted(set(depths) - {base}, key=lambda depth: (depth != SEARCHED, -depth)):
        for scale, alpha in ALPHAS.items():
            measure = networks.losses(depth, alpha)
            for rate, losses in search(measure, shallow, FURTHEST if depth == SEARCHED else 0).items():
                record(depth, scale, rate, losses)
            if alpha is None:
                rate = shallow * float(np.sqrt(base / depth))
                record(depth, "square root", rate, measure(rate))
        yield rows


def measure_curves(
    networks: Networks, short: Networks, depths: Sequence[int], optimizer: str
) -> Iterator[list[dict[str, Any]]]:
    """Yield mean losses of 20 steps, at the best rate of short trainings of the base, after each depth and scale."""
    found = search(short.losses(short.base, None), STARTS[optimizer])
    rate = min(found, key=lambda rate: found[rate][1].mean())
    rows: list[dict[str, Any]] = []
    for depth in sorted({networks.base, *depths}):
        for scale in ("unscaled",) if depth == networks.base else ("unscaled", "alpha 1"):
            for seed, losses in enumerate(networks.trainings(depth, ALPHAS[scale])(rate)):
                means = losses[: len(losses) // 20 * 20].reshape(-1, 20).mean(axis=1)
                rows += [
                    {
                        "depth": depth,
                        "scale": scale,
                        "seed": seed,
                        "rate": rate,
                        "step": 20 * (n + 1),
                        "loss": float(loss),
                    }
                    for n, loss in enumerate(means)
                ]
            yield rows


def summarize(rows: Sequence[Mapping[str, Any]], base: int) -> dict[str, Any]:
    """Return the numbers of a case: by depth and scale the loss at the shallow rate, the lowest loss and its rate."""
    means: dict[tuple[int, str], dict[float, float]] = {}
    firsts: dict[tuple[int, str], float] = {}
    for depth, scale in {(row["depth"], row["scale"]): None for row in rows}:
        own = [row for row in rows if (row["depth"], row["scale"]) == (depth, scale)]
        rates = sorted({row["rate"] for row in own})
        means[depth, scale] = {
            rate: float(np.mean([row["loss"] for row in own if row["rate"] == rate])) for rate in rates
        }
        firsts[depth, scale] = float(np.mean([row["first_loss"] for row in own]))
    shallow = min(means[base, "unscaled"], key=lambda rate: means[base, "unscaled"][rate])
    reference = means[base, "unscaled"][shallow]
    first = firsts[base, "unscaled"]
    numbers: dict[str, Any] = {f"depth {base}": {"rate": shallow, "loss": reference, "first_loss": first}}
    for (depth, scale), losses in means.items():
        if depth == base or scale == "square root":
            continue
        best = min(losses, key=lambda rate: losses[rate])
        loss, lowest = losses[shallow], losses[best]
        numbers[f"depth {depth}, {scale}"] = {
            "loss": loss,
            "lowest": lowest,
            "best_rate": best,
            "ratio": best / shallow,
            "transfers": bool(loss - lowest <= TOLERANCE * (firsts[depth, scale] - lowest)),
            "not_worse": bool(loss <= reference),
        }
    for (depth, scale), losses in means.items():
        if scale == "square root":
            (loss,) = losses.values()
            own = numbers[f"depth {depth}, unscaled"]
            decrease = firsts[depth, "unscaled"] - own["lowest"]
            numbers[f"depth {depth}, {scale}"] = {
                "loss": loss,
                "transfers": bool(loss - own["lowest"] <= TOLERANCE * decrease),
                "not_worse": bool(loss <= reference),
            }
    return numbers


def summarize_curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the rate of `measure_curves`, and the mean loss of the last tenth of the steps by depth and scale."""
    after = 0.9 * max(row["step"] for row in rows)
    losses: dict[str, list[float]] = {}
    for row in rows:
        if row["step"] > after:
            losses.setdefault(f"depth {row['depth']}, {row['scale']}", []).append(row["loss"])
    return {"rate": rows[0]["rate"]} | {name: float(np.mean(values)) for name, values in losses.items()}


def draw_curves(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return a figure of the losses of `measure_curves`, means over the seeds."""
    from matplotlib.figure import Figure

    figure = Figure((7.0, 3.8), layout="constrained")
    axes = figure.subplots()
    for number, (depth, scale) in enumerate({(row["depth"], row["scale"]): None for row in rows}):
        own = [row for row in rows if (row["depth"], row["scale"]) == (depth, scale)]
        steps = sorted({row["step"] for row in own})
        means = [float(np.mean([row["loss"] for row in own if row["step"] == step])) for step in steps]
        label = f"depth {depth}" + ("" if number == 0 else ", scaled" if scale != "unscaled" else ", as it is")
        axes.plot(steps, means, color=f"C{number}", label=label)
    axes.set(xlabel="step", ylabel="loss")
    axes.legend()
    return figure


def write_result(
    out: pathlib.Path, settings: Mapping[str, Any], numbers: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]
) -> None:
    """Write result.json, with settings, numbers and the losses of all trainings."""
    out.mkdir(parents=True, exist_ok=True)
    result = {"settings": settings, "numbers": numbers, "rows": list(rows)}
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    """Measure a case, or rewrite the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--block", choices=BLOCKS, default="pre-norm", help="type of blocks")
    parser.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="adamw", help="optimizer")
    parser.add_argument("--measure", choices=MEASURES, default="scaling", help="a case, a long training, or starts")
    parser.add_argument("--base", type=int, default=4, help="number of blocks for which the rate is found")
    parser.add_argument("--depths", type=int, nargs="+", default=[16, 32, 64], help="numbers of blocks")
    parser.add_argument("--width", type=int, help="number of channels; None for that of the definitions")
    parser.add_argument("--length", type=int, default=8, help="length of sequences in bytes")
    parser.add_argument("--batch-size", type=int, help="None for that of the definitions")
    parser.add_argument("--steps", type=int, default=100, help="steps of a training")
    parser.add_argument("--seeds", type=int, default=2, help="number of networks of each depth")
    parser.add_argument("--examples", type=int, default=2048, help="number of images or sequences")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/depth"), help="output folder")
    parser.add_argument("--page", type=pathlib.Path, metavar="DIR", help="rewrite the pages from the results in DIR")
    options = parser.parse_args()
    if options.page is not None:
        write_pages(options.page)
        return
    width = options.width or (16 if options.block in CONVOLUTIONS else 32)
    size = options.batch_size or {"mixer": 16, "mlp": 32}.get(options.block, 8)
    problem = load(options.block, width, options.length, options.examples)
    deepest = max(options.base, *options.depths)
    networks = Networks(problem, options.optimizer, options.base, deepest, options.steps, size, options.seeds)
    settings = {name: value for name, value in vars(options).items() if name not in ("out", "page")}
    settings |= {"width": width, "batch_size": size}
    if options.measure != "curves":
        starts: tuple[Kind, ...] = ("independent", "smooth", "equal") if options.measure == "starts" else ()
        for rows in measure_case(networks, options.depths, options.optimizer, print, starts):
            write_result(options.out, settings, summarize(rows, options.base), rows)
        return
    short = Networks(problem, options.optimizer, options.base, options.base, 200, size, options.seeds)
    for rows in measure_curves(networks, short, options.depths, options.optimizer):
        write_result(options.out, settings, summarize_curves(rows), rows)
    draw_curves(rows).savefig(options.out / "curves.png", dpi=150)


if __name__ == "__main__":
    main()
