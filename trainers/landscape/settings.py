"""Settings of `trainers.landscape`."""

import dataclasses
from typing import Literal

from trainers.cli.settings import group, setting
from trainers.experiments.opening import RunSettings


@dataclasses.dataclass(frozen=True)
class TargetSettings:
    """Linear maps to be learned."""

    dim: int = setting(6, help="dimension d of random targets", at_least=1, at_most=256)
    condition: tuple[float, ...] = setting(
        (2.0, 10.0, 100.0), help="condition numbers of random targets", at_least=1, at_most=10**12
    )
    determinant: Literal["positive", "negative", "both"] = setting(
        "both", help="sign of the determinant of random targets"
    )
    seeds: int = setting(2, help="number of random targets of each kind", at_least=1, at_most=100)
    target: str | None = setting(
        None, help="file with one square matrix to learn instead of random targets, .npy or text", metavar="FILE"
    )


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """Networks and their training."""

    depths: tuple[int, ...] = setting((4, 8, 16, 32, 64), help="numbers of layers l", at_least=1, at_most=10_000)
    steps: int = setting(1000, help="steps of gradient descent", at_least=1)

    @property
    def middle_depth(self) -> int:
        """Depth of the experiments with a single depth."""
        return sorted(self.depths)[len(self.depths) // 2]

    @property
    def record_every(self) -> int:
        """Number of steps between two records of a history."""
        return max(1, self.steps // 50)


@dataclasses.dataclass(frozen=True)
class Settings:
    """All settings of the program."""

    targets: TargetSettings = group(TargetSettings, "targets")
    networks: NetworkSettings = group(NetworkSettings, "networks")
    run: RunSettings = group(RunSettings, "run", out="runs/landscape")
