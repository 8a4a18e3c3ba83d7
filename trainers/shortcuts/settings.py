"""Settings of the commands of `trainers.shortcuts`."""

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias

from trainers.cli.arguments import UsageError
from trainers.cli.settings import group, setting
from trainers.experiments.program import DataSettings, RunSettings

# Activations with derivatives at zero, as Theorem 1 requires after the first layer of a unit.
Smooth = Literal["linear", "tanh", "silu", "gelu"]


@dataclasses.dataclass(frozen=True)
class RegressionSettings(DataSettings):
    """Regression problem."""

    dataset: Literal["mnist", "digits-like"] = setting("mnist", help="data set; digits-like is built in")


@dataclasses.dataclass(frozen=True)
class SweptNetworkSettings:
    """Networks to compare."""

    depths: tuple[int, ...] = setting(help="numbers of layers", at_least=1, at_most=1000)
    starts: int = setting(help="number of runs of each kind of network", at_least=1, at_most=1000)


@dataclasses.dataclass(frozen=True)
class TrajectoryNetworkSettings:
    """Networks whose training is recorded."""

    depth: int = setting(16, help="number of layers, an even number", at_least=2, at_most=200)
    starts: int = setting(10, help="number of runs of each kind of network", at_least=1, at_most=1000)
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
class DescentSettings:
    """Full-batch gradient descent."""

    epochs: int = setting(1000, help="number of updates", at_least=1)
    rates: tuple[float, ...] | None = setting(
        None, help="learning rates; the best one is used (default: 17 from 1e-3 to 10)", above=0
    )
    samples: int = setting(
        500, help="number of examples for networks with ReLUs (linear networks use all examples)", at_least=10
    )


@dataclasses.dataclass(frozen=True)
class UnitSettings:
    """Network of shortcut units at its zero point."""

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


@dataclasses.dataclass(frozen=True)
class ConditionsSettings:
    """Figure 5: condition numbers of the Hessian at initialization against depth."""

    data: RegressionSettings = group(RegressionSettings, "data")
    networks: SweptNetworkSettings = group(
        SweptNetworkSettings, "networks", depths=(1, 2, 3, 4, 6, 8, 12, 16, 24), starts=10
    )
    run: RunSettings = group(RunSettings, "run", out="runs/shortcuts-conditions")


@dataclasses.dataclass(frozen=True)
class TrajectorySettings:
    """Figures 6, 7, 8: spectrum and index of the Hessian and norm of the gradient during training."""

    data: RegressionSettings = group(RegressionSettings, "data")
    networks: TrajectoryNetworkSettings = group(TrajectoryNetworkSettings, "networks")
    descent: DescentSettings = group(DescentSettings, "gradient descent", samples=200)
    run: RunSettings = group(RunSettings, "run", out="runs/shortcuts-trajectory")


@dataclasses.dataclass(frozen=True)
class SweepSettings:
    """Figures 9, 10: best learning rate and its final loss against depth."""

    data: RegressionSettings = group(RegressionSettings, "data")
    networks: SweptNetworkSettings = group(SweptNetworkSettings, "networks", depths=(4, 8, 16, 32, 64, 96), starts=5)
    descent: DescentSettings = group(DescentSettings, "gradient descent")
    run: RunSettings = group(RunSettings, "run", out="runs/shortcuts-sweep")


@dataclasses.dataclass(frozen=True)
class NormsSettings:
    """Figure 3: mean Frobenius norm against training loss."""

    data: RegressionSettings = group(RegressionSettings, "data")
    networks: SweptNetworkSettings = group(SweptNetworkSettings, "networks", depths=(2, 4, 8, 16, 32), starts=3)
    descent: DescentSettings = group(DescentSettings, "gradient descent")
    run: RunSettings = group(RunSettings, "run", out="runs/shortcuts-norms")


@dataclasses.dataclass(frozen=True)
class Theorem1Settings:
    """Theorem 1: Hessian and order of the zero point, in closed form and by automatic differentiation."""

    data: RegressionSettings = group(RegressionSettings, "data")
    networks: UnitSettings = group(UnitSettings, "network")
    run: RunSettings = group(RunSettings, "run", out="runs/shortcuts-theorem1")


CommandSettings: TypeAlias = ConditionsSettings | TrajectorySettings | SweepSettings | NormsSettings | Theorem1Settings
# Settings of each command, a module of this package with a function `run`.
COMMANDS: Mapping[str, type[CommandSettings]] = {
    "conditions": ConditionsSettings,
    "trajectory": TrajectorySettings,
    "sweep": SweepSettings,
    "norms": NormsSettings,
    "theorem1": Theorem1Settings,
}
