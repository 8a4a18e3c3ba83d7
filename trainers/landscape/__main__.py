"""Test the theory of networks near the identity: Hardt & Ma, section 2, and four papers that followed."""

import dataclasses
from typing import Literal

from trainers.cli.arguments import UsageError
from trainers.cli.settings import as_dict, group, setting
from trainers.cli.startup import run_program
from trainers.experiments.program import EXIT_CODES, ExperimentProgram, Results, RunSettings

EXAMPLES = f"""
experiments, each with tables (CSV) and figures in --out:
  optima           Hardt & Ma: norm of the best factorization against depth, with the theorem's bound and a lower
                   bound; gradient descent of residual and standard parameterizations; certificate (2.3)
  identity         Bartlett et al.: gradient descent from the identity for symmetric targets
  regularized      Bartlett et al.: the power projection for positive targets that are not symmetric
  projections      Zou et al.: the targets with negative eigenvalues, between fixed input and output maps
  critical         Yun et al.: critical points of small residual networks, with TensorFlow or JAX for HessianOperator
  starts           Marion et al.: random starts by depth and scale

examples:
  python -m trainers.landscape                                          under two minutes on two CPU cores
  python -m trainers.landscape --dim 10 --depths 8 64 --condition 50
  python -m trainers.landscape --experiment identity --dim 10 --depths 2 3 4 8 16 32 64 --steps 500

{EXIT_CODES}
"""
# Settings of each experiment, the default one first.
_USED = {
    "optima": {"dim", "condition", "seeds", "depths", "steps"},
    "identity": {"dim", "condition", "targets", "depths", "steps"},
    "regularized": {"dim", "condition", "targets", "depths", "steps"},
    "projections": {"dim", "condition", "targets", "depths", "steps", "maps", "width"},
    "critical": {"points", "samples"},
    "starts": {"depths", "width", "networks"},
}


@dataclasses.dataclass(frozen=True)
class TargetSettings:
    """Linear maps to be learned."""

    dim: int = setting(6, help="dimension d", at_least=1, at_most=256)
    condition: tuple[float, ...] = setting((2.0, 10.0, 100.0), help="condition numbers", at_least=1, at_most=10**12)
    seeds: int = setting(
        2,
        help="optima: number of targets of each condition and sign of the determinant",
        at_least=1,
        at_most=100,
    )
    targets: int = setting(
        200,
        help="identity, regularized, projections: number of symmetric targets, half of them with negative eigenvalues",
        at_least=2,
        at_most=10_000,
    )


@dataclasses.dataclass(frozen=True)
class LinearNetworkSettings:
    """Networks and their training."""

    depths: tuple[int, ...] = setting((4, 8, 16, 32, 64), help="numbers of layers l", at_least=1, at_most=10_000)
    steps: int = setting(1000, help="steps of gradient descent", at_least=1)
    maps: Literal["identity", "gaussian"] = setting("identity", help="projections: fixed maps")
    width: int = setting(20, help="projections, starts: number of units", at_least=1, at_most=4096)


@dataclasses.dataclass(frozen=True)
class RandomNetworkSettings:
    """Nonlinear networks."""

    networks: int = setting(20, help="starts: number of networks of each kind", at_least=1, at_most=10_000)
    points: int = setting(300, help="critical: number of critical points", at_least=6, at_most=100_000)
    samples: int = setting(30, help="critical: number of examples", at_least=10, at_most=10_000)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LandscapeSettings:
    """All settings of the program."""

    experiment: Literal["optima", "identity", "regularized", "projections", "critical", "starts"] = setting(
        "optima", help="experiment"
    )
    targets: TargetSettings = group(TargetSettings, "targets")
    networks: LinearNetworkSettings = group(LinearNetworkSettings, "networks")
    random: RandomNetworkSettings = group(RandomNetworkSettings, "random networks")
    run: RunSettings = group(RunSettings, "run", out="runs/landscape")

    def __post_init__(self) -> None:
        for asked in (self.targets, self.networks, self.random):
            usual = as_dict(type(asked)())
            for name, value in as_dict(asked).items():
                if value != usual[name] and name not in _USED[self.experiment]:
                    fitting = [experiment for experiment, names in _USED.items() if name in names]
                    raise UsageError(
                        f"--{name} is not an option of --experiment {self.experiment}, but of {', '.join(fitting)}."
                    )


def _measure(settings: LandscapeSettings, results: Results) -> None:
    import threadpoolctl

    from trainers.landscape import critical, descent, factorization, identity, projections, regularized, starts

    asked, networks, random = settings.targets, settings.networks, settings.random
    if settings.experiment == "optima":
        targets = factorization.random_targets(asked.dim, asked.condition, asked.seeds)
        results.start("random", *targets.values())
        factorization.run(results, targets, networks.depths)
        descent.run(results, targets, networks.depths, networks.steps)
        return
    # Threads slow the products and eigenvalues of small matrices.
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        if settings.experiment in ("identity", "regularized", "projections"):
            chosen = identity.symmetric_targets(asked.dim, asked.condition, asked.targets)
            results.start("random", *chosen.values())
            if settings.experiment == "identity":
                identity.run(results, chosen, networks.depths, networks.steps)
                return
            indefinite = {name: R for name, R in chosen.items() if name.startswith(identity.INDEFINITE)}
            if settings.experiment == "regularized":
                positive = {name: R for name, R in chosen.items() if name not in indefinite}
                regularized.run(results, positive, networks.depths, networks.steps)
                return
            projections.run(results, indefinite, networks.maps, networks.width, networks.depths, networks.steps)
        elif settings.experiment == "critical":
            results.start("random")
            critical.run(results, random.points, random.samples)
        else:
            results.start("random")
            starts.run(results, networks.depths, networks.width, random.networks)


PROGRAM = ExperimentProgram("trainers.landscape", __doc__, EXAMPLES, LandscapeSettings, _measure)
parser, main = PROGRAM.parser, PROGRAM.main

if __name__ == "__main__":
    run_program(main)
