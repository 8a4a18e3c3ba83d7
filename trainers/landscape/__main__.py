"""Test the theory of networks near the identity: Hardt & Ma, section 2, and four papers that followed."""

import dataclasses
from typing import Literal

from trainers.cli.settings import group, setting
from trainers.cli.startup import run_program
from trainers.experiments.program import EXIT_CODES, ExperimentProgram, Results, RunSettings

EXAMPLES = f"""
experiments, each with tables (CSV) and figures in --out:
  optima           Hardt & Ma: norm of the best factorization against depth, with the theorem's bound and a lower
                   bound; gradient descent of residual and standard parameterizations; certificate (2.3)
  identity         Bartlett et al.: gradient descent from the identity for symmetric targets
  regularized      Bartlett et al.: the power projection for positive targets that are not symmetric
  projections      Zou et al.: the targets with negative eigenvalues, between fixed input and output maps
  critical         Yun et al.: critical points of small residual networks, with TensorFlow for HessianOperator
  starts           Marion et al.: random starts by depth and scale

examples:
  python -m trainers.landscape                                          under two minutes on two CPU cores
  python -m trainers.landscape --dim 10 --depths 8 64 --condition 50
  python -m trainers.landscape --experiment identity --dim 10 --depths 2 3 4 8 16 32 64 --steps 500

{EXIT_CODES}
"""


@dataclasses.dataclass(frozen=True)
class _Targets:
    """Linear maps to be learned by deep linear networks."""

    dim: int = setting(6, help="dimension d", at_least=1, at_most=256)
    condition: tuple[float, ...] = setting((2.0, 10.0, 100.0), help="condition numbers", at_least=1, at_most=10**12)
    depths: tuple[int, ...] = setting((4, 8, 16, 32, 64), help="numbers of layers l", at_least=1, at_most=10_000)
    steps: int = setting(1000, help="steps of gradient descent", at_least=1)


@dataclasses.dataclass(frozen=True)
class Optima(_Targets):
    """Options of `--experiment optima`."""

    seeds: int = setting(
        2, help="number of targets of each condition and sign of the determinant", at_least=1, at_most=100
    )


@dataclasses.dataclass(frozen=True)
class Symmetric(_Targets):
    """Options of `--experiment identity` and `--experiment regularized`."""

    targets: int = setting(
        200, help="number of symmetric targets, half of them with negative eigenvalues", at_least=2, at_most=10_000
    )


@dataclasses.dataclass(frozen=True)
class Projections(Symmetric):
    """Options of `--experiment projections`."""

    maps: Literal["identity", "gaussian"] = setting("identity", help="fixed maps")
    width: int = setting(20, help="number of units", at_least=1, at_most=4096)


@dataclasses.dataclass(frozen=True)
class Critical:
    """Options of `--experiment critical`."""

    points: int = setting(300, help="number of critical points", at_least=6, at_most=100_000)
    samples: int = setting(30, help="number of examples", at_least=10, at_most=10_000)


@dataclasses.dataclass(frozen=True)
class Starts:
    """Options of `--experiment starts`."""

    depths: tuple[int, ...] = setting((4, 8, 16, 32, 64), help="numbers of layers", at_least=1, at_most=10_000)
    width: int = setting(20, help="number of units", at_least=1, at_most=4096)
    networks: int = setting(20, help="number of networks of each kind", at_least=1, at_most=10_000)


EXPERIMENTS: dict[str, type] = {
    "optima": Optima,
    "identity": Symmetric,
    "regularized": Symmetric,
    "projections": Projections,
    "critical": Critical,
    "starts": Starts,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LandscapeSettings:
    """All settings of the program."""

    experiment: str = setting("optima", help="experiment")
    options: Optima | Symmetric | Critical | Starts = group(EXPERIMENTS, "experiment", by="experiment")
    run: RunSettings = group(RunSettings, "run", out="runs/landscape")


def _measure(settings: LandscapeSettings, results: Results) -> None:
    import threadpoolctl

    from trainers.landscape import critical, descent, factorization, identity, projections, regularized, starts

    asked = settings.options
    if isinstance(asked, Optima):
        targets = factorization.random_targets(asked.dim, asked.condition, asked.seeds)
        results.start("random", *targets.values())
        factorization.run(results, targets, asked.depths)
        descent.run(results, targets, asked.depths, asked.steps)
        return
    # Threads slow the products and eigenvalues of small matrices.
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        if isinstance(asked, Symmetric):
            targets = identity.symmetric_targets(asked.dim, asked.condition, asked.targets)
            results.start("random", *targets.values())
            indefinite = {name: R for name, R in targets.items() if name.startswith(identity.INDEFINITE)}
            positive = {name: R for name, R in targets.items() if name not in indefinite}
            if isinstance(asked, Projections):
                projections.run(results, indefinite, asked.maps, asked.width, asked.depths, asked.steps)
            elif settings.experiment == "regularized":
                regularized.run(results, positive, asked.depths, asked.steps)
            else:
                identity.run(results, targets, asked.depths, asked.steps)
            return
        results.start("random")
        if isinstance(asked, Critical):
            critical.run(results, asked.points, asked.samples)
        else:
            starts.run(results, asked.depths, asked.width, asked.networks)


PROGRAM = ExperimentProgram("trainers.landscape", __doc__, EXAMPLES, LandscapeSettings, _measure)
parser, main = PROGRAM.parser, PROGRAM.main

if __name__ == "__main__":
    run_program(main)
