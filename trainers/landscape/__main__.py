"""Test the landscape theory of "Identity Matters in Deep Learning" (Hardt & Ma, section 2) on deep linear networks."""

import dataclasses

from trainers.cli.settings import group, setting
from trainers.cli.startup import run_program
from trainers.experiments.program import EXIT_CODES, ExperimentProgram, Results, RunSettings

EXAMPLES = f"""
experiments, each with a table (CSV) and a figure in --out:
  factorization    norm of the best factorization against depth, with the theorem's bound and a lower bound
  descent          gradient descent of residual and standard parameterizations from a small start
  certificate      (figure only) squared gradient along the path, and its guaranteed lower bound (2.3)

examples:
  python -m trainers.landscape                                          under two minutes on two CPU cores
  python -m trainers.landscape --dim 10 --depths 8 64 --condition 50

{EXIT_CODES}
"""


@dataclasses.dataclass(frozen=True)
class TargetSettings:
    """Linear maps to be learned."""

    dim: int = setting(6, help="dimension d", at_least=1, at_most=256)
    condition: tuple[float, ...] = setting((2.0, 10.0, 100.0), help="condition numbers", at_least=1, at_most=10**12)
    seeds: int = setting(
        2, help="number of targets of each condition number and sign of the determinant", at_least=1, at_most=100
    )


@dataclasses.dataclass(frozen=True)
class LinearNetworkSettings:
    """Networks and their training."""

    depths: tuple[int, ...] = setting((4, 8, 16, 32, 64), help="numbers of layers l", at_least=1, at_most=10_000)
    steps: int = setting(1000, help="steps of gradient descent", at_least=1)


@dataclasses.dataclass(frozen=True)
class LandscapeSettings:
    """All settings of the program."""

    targets: TargetSettings = group(TargetSettings, "targets")
    networks: LinearNetworkSettings = group(LinearNetworkSettings, "networks")
    run: RunSettings = group(RunSettings, "run", out="runs/landscape")


def _measure(settings: LandscapeSettings, results: Results) -> None:
    from trainers.landscape import descent, factorization

    asked = settings.targets
    networks = settings.networks
    targets = factorization.random_targets(asked.dim, asked.condition, asked.seeds)
    results.start("random", *targets.values())
    factorization.run(results, targets, networks.depths)
    descent.run(results, targets, networks.depths, networks.steps)


PROGRAM = ExperimentProgram("trainers.landscape", __doc__, EXAMPLES, LandscapeSettings, _measure)
parser, main = PROGRAM.parser, PROGRAM.main

if __name__ == "__main__":
    run_program(main)
