"""Settings of the commands of `trainers.shortcuts`."""

import dataclasses
from typing import Any, Literal

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


def _make_settings(command: str, summary: str, **groups: Any) -> type:
    """Return the settings of a command: its data, groups of its own, and its run."""
    data, run = group(RegressionSettings, "data"), group(RunSettings, "run", out=f"runs/shortcuts-{command}")
    fields = [(name, Any, field) for name, field in {"data": data, **groups, "run": run}.items()]
    return dataclasses.make_dataclass(command, fields, frozen=True, namespace={"__doc__": summary})


def _swept(*depths: int, starts: int) -> Any:
    return group(SweptNetworkSettings, "networks", depths=depths, starts=starts)


def _descent(**defaults: Any) -> Any:
    return group(DescentSettings, "gradient descent", **defaults)


_GROUPS: dict[str, tuple[str, dict[str, Any]]] = {
    "conditions": (
        "Figure 5: condition numbers of the Hessian at initialization against depth.",
        {"networks": _swept(1, 2, 3, 4, 6, 8, 12, 16, 24, starts=10)},
    ),
    "trajectory": (
        "Figures 6, 7, 8: spectrum and index of the Hessian and norm of the gradient during training.",
        {"networks": group(TrajectoryNetworkSettings, "networks"), "descent": _descent(samples=200)},
    ),
    "sweep": (
        "Figures 9, 10: best learning rate and its final loss against depth.",
        {"networks": _swept(4, 8, 16, 32, 64, 96, starts=5), "descent": _descent()},
    ),
    "norms": (
        "Figure 3: mean Frobenius norm against training loss.",
        {"networks": _swept(2, 4, 8, 16, 32, starts=3), "descent": _descent()},
    ),
    "theorem1": (
        "Theorem 1: Hessian and order of the zero point, in closed form and by automatic differentiation.",
        {"networks": group(UnitSettings, "network")},
    ),
}
# Settings of each command, a module of this package with a function `run`.
COMMANDS = {command: _make_settings(command, summary, **groups) for command, (summary, groups) in _GROUPS.items()}
