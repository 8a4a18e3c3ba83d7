"""Settings of `trainers.shortcuts`."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from trainers.cli.arguments import UsageError
from trainers.cli.settings import group, setting
from trainers.experiments.program import DataSettings, RunSettings

# Activations with derivatives at zero, as Theorem 1 requires after the first layer of a unit.
Smooth = Literal["linear", "tanh", "silu", "gelu"]


@dataclasses.dataclass(frozen=True)
class RegressionSettings(DataSettings):
    """Regression problem."""

    dataset: Literal["mnist", "digits-like"] = setting("mnist", help="data set; digits-like is built in")


_STARTS = "number of runs of each kind of network; by default 5 in sweep and 3 in norms"


@dataclasses.dataclass(frozen=True)
class Conditions:
    """Figure 5: condition numbers of the Hessian at initialization against depth."""

    depths: tuple[int, ...] = setting(
        (1, 2, 3, 4, 6, 8, 12, 16, 24),
        help="numbers of layers; by default 4 8 16 32 64 96 in sweep and 2 4 8 16 32 in norms",
        at_least=1,
        at_most=1000,
    )
    starts: int = setting(10, help=_STARTS, at_least=1, at_most=1000)


@dataclasses.dataclass(frozen=True)
class Training:
    """Full-batch gradient descent."""

    starts: int = setting(10, help=_STARTS, at_least=1, at_most=1000)
    epochs: int = setting(1000, help="number of updates", at_least=1)
    rates: tuple[float, ...] | None = setting(
        None, help="learning rates; the best one is used (default: 17 from 1e-3 to 10)", above=0
    )
    samples: int = setting(
        200,
        help="number of examples, by default 500 in sweep and norms, and 2000 in theorem1; linear networks that are "
        "trained use all examples",
        at_least=10,
    )


@dataclasses.dataclass(frozen=True)
class Trajectory(Training):
    """Figures 6, 7, 8: spectrum and index of the Hessian and norm of the gradient during training."""

    depth: int = setting(16, help="number of layers, an even number", at_least=2, at_most=200)
    records: int = setting(
        12,
        help="number of spectra of each run, evenly distributed over the logarithm of the loss; three times as many "
        "for the first run",
        at_least=2,
    )

    def __post_init__(self) -> None:
        if self.depth % 2:
            raise UsageError(f"--depth must be even, for units of two layers. Received: {self.depth}")


@dataclasses.dataclass(frozen=True)
class Sweep(Training):
    """Figures 9, 10: best learning rate and its final loss against depth."""

    depths: tuple[int, ...] = setting((4, 8, 16, 32, 64, 96), help="numbers of layers", at_least=1, at_most=1000)
    starts: int = setting(5, help=_STARTS, at_least=1, at_most=1000)
    samples: int = setting(500, help="number of examples", at_least=10)


@dataclasses.dataclass(frozen=True)
class Norms(Sweep):
    """Figure 3: mean Frobenius norm against training loss."""

    depths: tuple[int, ...] = setting((2, 4, 8, 16, 32), help="numbers of layers", at_least=1, at_most=1000)
    starts: int = setting(3, help=_STARTS, at_least=1, at_most=1000)


@dataclasses.dataclass(frozen=True)
class Theorem1:
    """Theorem 1: Hessian and order of the zero point, in closed form and by automatic differentiation."""

    units: int = setting(4, help="number of shortcut units R", at_least=1, at_most=10_000)
    shortcut_depth: int = setting(2, help="number of layers in each unit", at_least=1, at_most=12)
    pre: Literal["linear", "relu", "tanh", "silu", "gelu"] = setting(
        "linear", help="activation before the first layer of a unit"
    )
    mid: Smooth = setting("linear", help="activation between the layers of a unit")
    post: Smooth = setting("linear", help="activation after the last layer of a unit")
    samples: int = setting(2000, help="number of examples", at_least=10)

    def __post_init__(self) -> None:
        if self.shortcut_depth == 1 and {self.pre, self.mid, self.post} != {"linear"}:
            raise UsageError(
                "--pre, --mid and --post require a --shortcut-depth of at least 2. For 1, the spectrum has a closed "
                "form without activations only."
            )


# Options of each experiment, a module of this package with a function `run`.
EXPERIMENTS: Mapping[str, type] = {
    "conditions": Conditions,
    "trajectory": Trajectory,
    "sweep": Sweep,
    "norms": Norms,
    "theorem1": Theorem1,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShortcutSettings:
    """All settings of the program."""

    experiment: str = setting("conditions", help="experiment")
    data: RegressionSettings = group(RegressionSettings, "data")
    options: Conditions | Training | Theorem1 = group(EXPERIMENTS, "experiment", by="experiment")
    run: RunSettings = group(RunSettings, "run", out="runs/shortcuts")
