"""Memorize a whole training set in closed form, by Theorem 3.2 of "Identity Matters in Deep Learning"."""

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from trainers.cli.settings import group, setting
from trainers.cli.startup import import_tensorflow, run_program
from trainers.experiments.program import EXIT_CODES, Program, RunSettings

if TYPE_CHECKING:
    from trainers.expressivity.memorizing import Sample
    from trainers.run.folder import Run

EXAMPLES = f"""
The program builds the network, saves and reloads it, and checks every row. Outputs in --out: model.keras, result.json.

examples:
  python -m trainers.expressivity --dataset shapes --labels random --train-images 2000
  python -m trainers.expressivity --dataset cifar10 --labels random --width 32        all 50,000 images

{EXIT_CODES}
"""


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """Points and labels to memorize."""

    dataset: Literal["cifar10", "cifar100", "mnist", "shapes"] = setting("shapes", help="data set; shapes is built in")
    labels: Literal["true", "random"] = setting("random", help="labels to memorize")
    data_dir: str | None = setting(
        None, help="folder with the files of the data set, as for the training programs", metavar="DIR"
    )
    download: bool = setting(True, help="download missing data")
    train_images: int | None = setting(
        None, help="memorize only the first N training images (default: all)", at_least=1
    )


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """Construction of the memorizer."""

    width: int = setting(32, help="width k of the residual blocks", metavar="K", at_least=1, at_most=1_000_000)
    order: Literal["norm", "ridge"] = setting(
        "norm", help="norm is fast; ridge has larger margins on clusters, in about ten times the time"
    )
    seed: int = setting(0, help="random seed", at_least=0, at_most=2**31 - 1)


@dataclasses.dataclass(frozen=True)
class Settings:
    """All settings of the program."""

    data: DataSettings = group(DataSettings, "data")
    network: NetworkSettings = group(NetworkSettings, "network")
    run: RunSettings = group(RunSettings, "run", out="runs/memorize")


def _load(settings: Settings) -> "Sample":
    from trainers.expressivity.memorizing import load_sample

    sample = load_sample(settings)
    import_tensorflow()
    return sample


def _report(sample: "Sample", settings: Settings, run: "Run") -> dict[str, Any]:
    from trainers.experiments.experiment import stage_bars
    from trainers.expressivity.memorizing import describe, memorize_and_verify

    with stage_bars(unit="rows") as progress:
        result = memorize_and_verify(sample, settings.network, run.path / "model.keras", progress)
    for name, text in describe(result).items():
        print(f"{name + ':':18}{text}", flush=True)
    return result


PROGRAM = Program("trainers.expressivity", __doc__, EXAMPLES, Settings, _load, report=_report)
parser, main = PROGRAM.parser, PROGRAM.main

if __name__ == "__main__":
    run_program(main)
