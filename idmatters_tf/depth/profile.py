"""Profile of an architecture: measurements at several depths and seeds, their power laws, verdicts and predictions."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from idmatters_tf._arguments import positive_integer
from idmatters_tf._presentation.progress import Progress
from idmatters_tf._presentation.results import Drawing, Figure, Result, tabulate
from idmatters_tf.depth.measurement import QUANTITIES, DepthMeasurement, Options, build_models, measure_model
from idmatters_tf.depth.power_law import PowerLaw, Prediction, fit_power_law

PANELS: Mapping[str, Sequence[str]] = {
    "loss and gradient": ("loss", "gradient_norm", "block_gradient", "block_gradient_ratio"),
    "|eigenvalues| of the Hessian": ("hessian_largest", "hessian_smallest", "hessian_p10"),
    "eigenvalues of the Gauss-Newton matrix": ("gauss_newton_largest", "gauss_newton_smallest", "gauss_newton_p10"),
    "condition numbers": ("hessian_condition", "gauss_newton_condition"),
    "Jacobians": ("jacobian_largest", "jacobian_smallest", "distance_mean", "distance_largest"),
    "largest stable rates": ("sgd_rate", "momentum_rate"),
}
SINGULAR = "A tenth of the eigenvalues cannot be distinguished from zero, as with few examples."


class Predictions(dict[str, Prediction]):
    """Values predicted for a depth: a dict from quantities to `Prediction`."""

    def table(self) -> str:
        """Return a table with the value of each quantity and the ends of its interval."""
        return tabulate(("quantity", *Prediction._fields), [(name, *row) for name, row in self.items()])


@dataclasses.dataclass(frozen=True, repr=False)
class DepthProfile(Result, Drawing):
    """Result of `depth_profile`. `plot(path)` draws all quantities against depth.

    Attributes:
        measurements: one `DepthMeasurement` for each depth and seed, in order.
        laws: `PowerLaw` of each quantity of `QUANTITIES`.
    """

    size: ClassVar = (13.0, 7.0)
    measurements: tuple[DepthMeasurement, ...]
    laws: dict[str, PowerLaw]

    @property
    def depths(self) -> list[int]:
        """Measured depths, in ascending order."""
        return sorted({measurement.depth for measurement in self.measurements})

    @property
    def verdicts(self) -> dict[str, str]:
        """One sentence for each quantity, computed from the confidence interval of its power law."""
        sentences = {name: f"{QUANTITIES[name]} {law.verdict()}." for name, law in self.laws.items()}
        for name in ("hessian_condition", "gauss_newton_condition"):
            if "infinite" in self.laws[name].reason:
                sentences[name] += f" {SINGULAR}"
        orders = sorted({measurement.order for measurement in self.measurements if measurement.order is not None})
        if orders:
            kinds = " or ".join(("0 (not stationary)", "1", "2 or more")[order] for order in orders)
            sentences["stationary_order"] = f"the order of the stationary point of the blocks is {kinds}."
        return {name: text[0].upper() + text[1:] for name, text in sentences.items()}

    def predict(self, depth: int) -> Predictions:
        """Return each quantity at a depth with its 95 % prediction interval, see `PowerLaw.predict`."""
        positive_integer("depth", depth)
        return Predictions({name: law.predict(depth) for name, law in self.laws.items()})

    def rows(self) -> list[dict[str, Any]]:
        """Return depth, seed, parameters, order, values and errors ("NAME_error") of each model."""
        names = ("depth", "seed", "parameters", "order")
        return [
            {name: getattr(m, name) for name in names}
            | m.values
            | {f"{name}_error": m.errors[name] for name in m.errors}
            for m in self.measurements
        ]

    def table(self) -> str:
        """Return a table of the means over the seeds, with the exponents and their 95 % intervals."""
        rows = []
        for name, law in self.laws.items():
            means = [np.mean([m.values[name] for m in self.measurements if m.depth == depth]) for depth in self.depths]
            rows.append((name, *means, law.exponent, f"({law.low:.2f} to {law.high:.2f})", law.state))
        return tabulate(("quantity", *self.depths, "exponent", "95 % interval", "state"), rows)

    def draw(self, figure: Figure) -> None:
        """Draw resolved magnitudes with error bars against depth in six panels, and lines for the power laws."""
        ends = self.depths[0], self.depths[-1]
        for axes, (title, names) in zip(figure.subplots(2, 3).flat, PANELS.items(), strict=True):
            axes.set(title=title, xlabel="depth", xscale="log", yscale="log")
            for number, name in enumerate(names):
                values = [(m.depth, abs(m.values[name]), m.errors[name]) for m in self.measurements]
                points = [point for point in values if point[2] < point[1] < np.inf]
                if points:
                    axes.errorbar(*zip(*points, strict=True), fmt="o", color=f"C{number}", markersize=4, label=name)
                    axes.plot(ends, [abs(self.laws[name].predict(end).value) for end in ends], color=f"C{number}")
            axes.set_xticks(self.depths, list(map(str, self.depths)))
            axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
            axes.grid(alpha=0.3)
            if axes.lines:
                axes.legend(fontsize=7)
            else:
                axes.text(0.5, 0.5, "not resolved", transform=axes.transAxes, ha="center")


def depth_profile(
    build: Callable[..., keras.Model],
    depths: Sequence[int],
    data: Any,
    loss: Any = None,
    seeds: int = 3,
    *,
    blocks: Callable[[int], Any] | None = None,
    training: bool | None = None,
    momentum: float = 0.9,
    examples: int = 2,
    batch_size: int = 256,
    progress: bool = False,
) -> DepthProfile:
    """Measure how the start of training depends on the depth of an architecture.

    `QUANTITIES` lists the measurements. Condition numbers are those of Li et al. (*Demystifying ResNet*, footnote 1),
    the largest |eigenvalue| over the 10th percentile; distances are those of Hardt & Ma. Rates are those of a quadratic
    model; training becomes unstable at other rates, by a factor that depends on the architecture. The percentile
    is zero for fewer than 0.9 P / C examples, with P parameters and C outputs for an example, unless the second
    derivatives of the outputs have a large rank. Condition numbers are then infinite or not resolved.

    A model takes about 50 products with each matrix. With TensorFlow, compiling takes about half of the time. A profile
    of transformers with 2, 4, 8 and 16 blocks of width 64 (0.8 million parameters), 32 sequences of 32 tokens and three
    seeds took 6.6 minutes and 1.9 GB on two cores of an AMD EPYC; of ResNet blocks (1.2 million), 5.1 minutes. One
    model exists at a time.

    Args:
        build: function of a depth, or of `depth` and `seed`, that returns a built `keras.Model`. Keras' global random
            seed is set before each call. Models of different seeds must have different weights.
        depths: at least two different depths.
        data: see `HessianOperator`. All products use all of it; some dozens of examples are enough.
        loss: see `HessianOperator`; None for the compiled loss.
        seeds: number of models at each depth.
        blocks: function of a depth that returns names of blocks, see `idmatters_tf.isometry.find_blocks`. If None, the
            residual blocks that are detected.
        training: mode in which the model is called. If None, True for models with batch normalization, whose data must
            be arrays or a single batch, and otherwise False, which turns dropout off.
        momentum: momentum m of `momentum_rate`.
        examples: number of examples for Jacobians. In training mode the whole first batch is one point.
        batch_size: batch size for arrays.
        progress: True to show a progress bar on standard error.

    Raises:
        ValueError: in the cases of `GaussNewtonOperator`, for fewer than two depths, and for equal weights.
    """
    chosen = sorted({positive_integer("depths", depth) for depth in depths})
    if len(chosen) < 2:
        raise ValueError(f"Argument `depths` must contain at least two different depths. Received: {list(depths)}")
    options = Options(data, loss, training, momentum, examples, batch_size)
    measurements: list[DepthMeasurement] = []
    with Progress(positive_integer("seeds", seeds) * sum(chosen), "depth profile", progress, unit="units") as bar:
        for depth in chosen:
            for model in build_models(build, depth, seeds):
                seed = len(measurements) % seeds
                names = None if blocks is None else blocks(depth)
                measurements.append(measure_model(model, depth, seed, names, options, check=not measurements))
                # The next model is built when this one is released.
                del model
                bar.advance(depth, f"depth {depth}, seed {seed}")
    laws = {}
    for name in QUANTITIES:
        points = [(m.depth, m.values[name], m.errors[name]) for m in measurements]
        laws[name] = fit_power_law(*zip(*points, strict=True))
    return DepthProfile(tuple(measurements), laws)
