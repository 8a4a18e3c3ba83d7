"""Memorize a whole training set in closed form, by an extension of Theorem 3.2 of Hardt & Ma."""

import dataclasses
from typing import Literal

from trainers.backends import import_tensorflow
from trainers.cli.settings import group, setting
from trainers.cli.startup import run_program
from trainers.experiments.program import EXIT_CODES, DataSettings, ExperimentProgram, Results, RunSettings

EXAMPLES = f"""
The program builds the network, saves and reloads it, and checks every row. Outputs in --out: model.keras, result.json.

examples:
  python -m trainers.expressivity --dataset shapes --labels random --train-images 2000
  python -m trainers.expressivity --dataset cifar10 --download --labels random        all 50,000 images

{EXIT_CODES}
"""


@dataclasses.dataclass(frozen=True)
class PointSettings(DataSettings):
    """Points and labels to memorize."""

    dataset: Literal["cifar10", "cifar100", "mnist", "shapes"] = setting("shapes", help="data set; shapes is built in")
    labels: Literal["true", "random"] = setting("random", help="labels to memorize")
    train_images: int | None = setting(
        None, help="memorize only the first N training images (default: all)", at_least=1
    )


@dataclasses.dataclass(frozen=True)
class MemorizerSettings:
    """Construction of the memorizer."""

    width: int = setting(32, help="width k of the residual blocks", metavar="K", at_least=1, at_most=1_000_000)
    order: Literal["norm", "ridge"] = setting(
        "norm", help="norm is fast; ridge has larger margins on clusters, in about ten times the time"
    )
    seed: int = setting(0, help="random seed", at_least=0, at_most=2**31 - 1)


@dataclasses.dataclass(frozen=True)
class MemorizeSettings:
    """All settings of the program."""

    data: PointSettings = group(PointSettings, "data")
    network: MemorizerSettings = group(MemorizerSettings, "network")
    run: RunSettings = group(RunSettings, "run", out="runs/memorize")


def _measure(settings: MemorizeSettings, results: Results) -> None:
    import_tensorflow()
    import numpy as np

    from trainers.expressivity.memorizing import memorize_and_verify, verdict

    data = settings.data
    network = settings.network
    images = data.load().first(data.train_images, None)
    labels = images.train_labels
    if data.labels == "random":
        labels = np.random.default_rng(network.seed).integers(0, images.classes, len(labels))
    results.start(images.origin, images.train_images, labels)
    path = results.path / "model.keras"
    results.values |= memorize_and_verify(images, labels, path, **dataclasses.asdict(network))
    results.add(verdict(results.values))


PROGRAM = ExperimentProgram("trainers.expressivity", __doc__, EXAMPLES, MemorizeSettings, _measure, ("tensorflow",))
parser, main = PROGRAM.parser, PROGRAM.main

if __name__ == "__main__":
    run_program(main)
