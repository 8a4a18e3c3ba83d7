"""Settings of the experiments on the landscape of deep linear networks."""

import dataclasses

from trainers.cli.settings import group, setting
from trainers.experiments.program import RunSettings


@dataclasses.dataclass(frozen=True)
class TargetSettings:
    """Linear maps to be learned."""

    dim: int = setting(6, help="dimension d", at_least=1, at_most=256)
    condition: tuple[float, ...] = setting((2.0, 10.0, 100.0), help="condition numbers", at_least=1, at_most=10**12)
    seeds: int = setting(
        2, help="number of targets of each condition number and sign of the determinant", at_least=1, at_most=100
    )


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """Networks and their training."""

    depths: tuple[int, ...] = setting((4, 8, 16, 32, 64), help="numbers of layers l", at_least=1, at_most=10_000)
    steps: int = setting(1000, help="steps of gradient descent", at_least=1)

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
