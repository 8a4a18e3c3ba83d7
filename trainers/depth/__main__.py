"""Measure how the start of training and learning rates depend on depth, for built-in types of blocks."""

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from trainers.backends import import_tensorflow, runs_on_tensorflow
from trainers.cli.arguments import UsageError
from trainers.cli.settings import group, setting
from trainers.cli.startup import print_lines, run_program
from trainers.experiments.program import (
    EXIT_CODES,
    DataSettings,
    ExperimentProgram,
    Results,
    RunSettings,
)

if TYPE_CHECKING:
    from trainers.depth.blocks import Problem

EXAMPLES = f"""
types of blocks:
  near-identity    two convolutions, initialized near zero (Hardt & Ma)
  standard         the same with standard initialization; zero-branch: with zeros in the second one
  batch-norm       two convolutions with batch normalization (He et al.); pre-activation: each after both
  convnext         depthwise convolution, layer normalization and MLP (Liu et al.)
  mlp              two dense layers after layer normalization; mixer: such layers on patches and on channels
  pre-norm         attention and MLP, each after layer normalization; post-norm: each before it
  gated            causal convolution and gated linear unit after RMS normalization

examples:
  python -m trainers.depth --block pre-norm --depths 2 4 8 16              text of Python's documentation
  python -m trainers.depth --block near-identity --dataset shapes --seeds 5
  python -m trainers.depth --block post-norm --measure rates --depths 2 4 8      best and largest stable rates
  KERAS_BACKEND=jax python -m trainers.depth --block mlp --measure scaling --depths 16 32 64 --optimizer adamw

{EXIT_CODES}
"""
Block = Literal[
    "near-identity",
    "standard",
    "zero-branch",
    "batch-norm",
    "pre-activation",
    "convnext",
    "mlp",
    "mixer",
    "pre-norm",
    "post-norm",
    "gated",
]


@dataclasses.dataclass(frozen=True)
class ExampleSettings(DataSettings):
    """Examples."""

    dataset: Literal["cifar10", "shapes"] = setting("cifar10", help="images for convolutions; shapes is built in")
    examples: int = setting(32, help="number of images or sequences", at_least=2)
    length: int = setting(32, help="length of sequences in bytes", at_least=2, at_most=4096)


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """Networks."""

    block: Block = setting(help="type of blocks")
    measure: Literal["start", "rates", "scaling", "curves"] = setting(
        "start",
        help="profile of the start of training, learning rates, transfer of rates from --base by scale_depth, "
        "or losses of a training at the rate of --base (both on JAX)",
    )
    depths: tuple[int, ...] = setting((2, 4, 8, 16), help="numbers of blocks", at_least=1, at_most=1000)
    width: int = setting(64, help="number of channels, a multiple of 4", at_least=4)
    base: int = setting(4, help="number of blocks for which --measure scaling and curves find the rate", at_least=1)
    seeds: int = setting(3, help="number of networks of each depth", at_least=1)

    def __post_init__(self) -> None:
        if len(set(self.depths)) == 1 or self.width % 4:
            received = f"--depths {' '.join(map(str, self.depths))} --width {self.width}"
            raise UsageError(
                f"--depths must have two different values, and --width be a multiple of 4. Received: {received}"
            )


@dataclasses.dataclass(frozen=True)
class RateSettings:
    """Best and largest stable learning rates of short trainings."""

    optimizer: Literal["momentum", "adamw", "muon"] = setting("momentum", help="optimizer of the trainings")
    steps: int = setting(200, help="steps of a training", at_least=10)
    batch_size: int = setting(32, help="batch size of the trainings", at_least=1)


@dataclasses.dataclass(frozen=True)
class DepthSettings:
    """All settings of the program."""

    data: ExampleSettings = group(ExampleSettings, "data")
    networks: NetworkSettings = group(NetworkSettings, "networks")
    rates: RateSettings = group(RateSettings, "rates")
    run: RunSettings = group(RunSettings, "run", out="runs/depth")


def _measure(settings: DepthSettings, results: Results) -> None:
    if settings.networks.measure in ("scaling", "curves") and runs_on_tensorflow():
        raise UsageError("--measure scaling and curves run on JAX. Received: KERAS_BACKEND=tensorflow. Set it to jax.")
    import_tensorflow()
    from trainers.depth.blocks import load

    data, networks = settings.data, settings.networks
    problem = load(networks.block, networks.width, data, data.examples, data.length)
    results.start(problem.origin, problem.train_x, problem.train_y)
    if networks.measure == "start":
        _measure_start(problem, networks, results)
    elif networks.measure != "rates":
        _measure_scaling(problem, networks, settings.rates, results)
    else:
        _measure_rates(problem, networks, settings.rates, results)


def _measure_start(problem: "Problem", networks: NetworkSettings, results: Results) -> None:
    from idmatters_tf import depth_profile

    options = {"blocks": problem.block_names, "progress": True}
    profile = depth_profile(
        problem.build, networks.depths, (problem.x, problem.y), problem.loss, networks.seeds, **options
    )
    print_lines(profile.table())
    results.save("depth", profile.rows(), {}, profile.verdicts.values())
    profile.plot(results.figure_path("depth"))


def _measure_rates(problem: "Problem", networks: NetworkSettings, rates: RateSettings, results: Results) -> None:
    from idmatters_tf import rate_profile
    from trainers.depth.blocks import OPTIMIZERS

    options = {"seeds": networks.seeds, "batch_size": rates.batch_size, "progress": True}
    arrays = problem.train_x, problem.train_y
    optimizer = OPTIMIZERS[rates.optimizer]
    profile = rate_profile(
        problem.build, networks.depths, arrays, problem.loss, optimizer, steps=rates.steps, **options
    )
    print_lines(profile.table())
    results.save("rates", profile.rows(), {})
    profile.plot(results.figure_path("rates"))


def _measure_scaling(problem: "Problem", networks: NetworkSettings, rates: RateSettings, results: Results) -> None:
    from trainers.depth import scaling

    rows: list[Any] = []
    deepest = max(networks.base, *networks.depths)
    options = (rates.batch_size, networks.seeds)
    made = scaling.Networks(problem, rates.optimizer, networks.base, deepest, rates.steps, *options)
    if networks.measure == "scaling":
        for rows in scaling.measure_case(made, networks.depths, rates.optimizer, print_lines):
            results.save("scaling", rows, {})
        results.values["numbers"] = scaling.summarize(rows, networks.base)
        return
    short = scaling.Networks(problem, rates.optimizer, networks.base, networks.base, 200, *options)
    for rows in scaling.measure_curves(made, short, networks.depths, rates.optimizer):
        results.save("curves", rows, {"curves": scaling.draw_curves})
    results.values["numbers"] = scaling.summarize_curves(rows)


PROGRAM = ExperimentProgram("trainers.depth", __doc__, EXAMPLES, DepthSettings, _measure)
parser, main = PROGRAM.parser, PROGRAM.main
BACKENDS = ("tensorflow", "jax")

if __name__ == "__main__":
    run_program(main, BACKENDS)
