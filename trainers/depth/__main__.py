"""Measure how the start of training depends on the depth of a network, for built-in block types.

The measurements are those of `idmatters_tf.depth_profile`: loss, gradients, spectra of the Hessian and the Gauss-Newton
matrix, Jacobians, and the largest stable rates, each with a power law in depth.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from trainers.cli.settings import group, setting
from trainers.cli.startup import import_tensorflow, run_program
from trainers.experiments.program import EXIT_CODES, Program, RunSettings

if TYPE_CHECKING:
    from trainers.depth.blocks import Problem
    from trainers.run.folder import Run

EXAMPLES = f"""
block types:
  near-identity    two convolutions, initialized near zero (Hardt & Ma)
  standard         the same with standard initialization
  batch-norm       two convolutions with batch normalization (He et al.)
  zero-branch      two convolutions, the second one initialized with zeros
  pre-norm         attention and MLP, each after layer normalization
  post-norm        attention and MLP, each before layer normalization

examples:
  python -m trainers.depth --block pre-norm --depths 2 4 8 16                    text from Python's documentation
  python -m trainers.depth --block near-identity --dataset shapes --seeds 5      built-in images

{EXIT_CODES}
"""


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """Examples."""

    dataset: Literal["cifar10", "shapes"] = setting("cifar10", help="images for convolutions; shapes is built in")
    data_dir: str | None = setting(
        None, help="folder with the data", unset="$TFDS_DATA_DIR or ~/tensorflow_datasets", metavar="DIR"
    )
    download: bool = setting(True, help="download CIFAR-10 if it is missing")
    examples: int = setting(32, help="number of images or sequences", at_least=2)
    length: int = setting(32, help="length of sequences in bytes", at_least=2, at_most=4096)


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """Networks."""

    block: Literal["near-identity", "standard", "batch-norm", "zero-branch", "pre-norm", "post-norm"] = setting(
        help="block type"
    )
    depths: tuple[int, ...] = setting((2, 4, 8, 16), help="numbers of blocks", at_least=1, at_most=1000)
    width: int = setting(64, help="number of channels, a multiple of 4", at_least=4)
    seeds: int = setting(3, help="number of networks of each depth", at_least=1)
    momentum: float = setting(0.9, help="momentum m of the largest rate (2 + 2 m) / lambda", at_least=0, below=1)


@dataclasses.dataclass(frozen=True)
class Settings:
    """All settings of the program."""

    data: DataSettings = group(DataSettings, "data")
    networks: NetworkSettings = group(NetworkSettings, "networks")
    run: RunSettings = group(RunSettings, "run", out="runs/depth")


def _load(settings: Settings) -> "Problem":
    import_tensorflow()
    from trainers.depth.blocks import load

    return load(settings.networks.block, settings.networks.width, **dataclasses.asdict(settings.data))


def _report(problem: "Problem", settings: Settings, run: "Run") -> dict[str, Any]:
    from idmatters_tf import depth_profile
    from trainers.run.records import write_csv

    networks = settings.networks
    profile = depth_profile(
        problem.build,
        networks.depths,
        (problem.x, problem.y),
        problem.loss,
        networks.seeds,
        blocks=problem.block_names,
        momentum=networks.momentum,
        progress=True,
    )
    rows = [
        {"depth": m.depth, "seed": m.seed, "parameters": m.parameters, "order": m.order, **m.values}
        | {f"{name}_error": error for name, error in m.errors.items()}
        for m in profile.measurements
    ]
    write_csv(run.path / "depth.csv", rows)
    profile.plot(run.path / f"depth.{settings.run.format}")
    print(profile.table(), *profile.verdicts.values(), sep="\n")
    return {"verdicts": list(profile.verdicts.values()), "tables": {"depth": len(rows)}}


PROGRAM = Program("trainers.depth", __doc__, EXAMPLES, Settings, _load, report=_report)
parser, main = PROGRAM.parser, PROGRAM.main

if __name__ == "__main__":
    run_program(main)
