"""Settings of the memorization of a training set."""

import dataclasses
from typing import Literal

from trainers.cli.settings import group, setting
from trainers.experiments.program import RunSettings


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
