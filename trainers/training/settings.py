"""Settings shared by all training programs: recipe, intervals, commands, and tasks with their data and folders.

`trainers.cli.settings.make` checks the settings of all sources: the command line, `--resume`, `--evaluate`, and a
config.json edited by hand.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from trainers.cli.arguments import UsageError
from trainers.cli.settings import as_dict, group, make, options, setting
from trainers.datasets import DATA_SETS, DataOptions
from trainers.networks import NETWORKS, Network, build, describe
from trainers.run.folder import WHERE_DATA_ARE, Run

if TYPE_CHECKING:
    import keras

    from idmatters_tf.data.protocols import DataSet
    from idmatters_tf.distribute import ClusterDescription

# Maximum of the default of --log-every.
LOG_EVERY = 20


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Training recipe of a network."""

    steps: int = setting(60_000, help="number of updates", at_least=1, common=True)
    batch_size: int = setting(
        128,
        help="size of the global batch; with parameter servers, of the batch of each worker's update",
        at_least=1,
        common=True,
    )
    learning_rate: float = setting(0.05, help="initial learning rate", above=0, common=True)
    optimizer: Literal["momentum", "nesterov", "muon", "muon-free"] = setting(
        "momentum",
        help="gradient descent with momentum, or with that of Nesterov; or orthogonalized Nesterov momentum (Jordan et "
        "al., 2024): on kernels of constant norm, for which the learning rate is the rotation angle of a kernel per "
        "step, or of free norms, as networks near the identity require, with 1.5 or 0.5 times the rate for biases, "
        "gains and the last layer",
    )
    label_smoothing: float = setting(
        0.0, help="share of each label to distribute over all classes (Szegedy et al., 2016)", at_least=0, below=1
    )
    weight_decay: float = setting(
        1e-4,
        help="add X * sum(w^2) / 2 over the kernels to the loss, as the paper's code does; with --optimizer "
        "muon-free, multiply all weights by 1 - rate * X in each step instead",
        at_least=0,
    )
    clip_norm: float | None = setting(
        None, help="clip the gradient to this global norm", unset="no clipping", above=0, common=True
    )
    precision: Literal["float32", "bfloat16"] = setting(
        "float32", help="precision of the convolutions; weights stay float32", common=True
    )
    seed: int = setting(
        0,
        help="random seed of the weights, the order of the images and their augmentation",
        at_least=0,
        at_most=2**31 - 1,
        common=True,
    )
    train_sizes: tuple[str, ...] = setting(
        (),
        help="train on images scaled to SIZE x SIZE pixels up to STEP, then to the next size, and after the last STEP "
        "on images of the full size, at which evaluations are made",
        metavar="SIZE:STEP",
        may_be_empty=True,
    )
    schedule: Literal["drops", "decay", "linear", "airbench"] = setting(
        "drops",
        help="learning rate schedule: drops to a tenth at --drop-steps; decay by a factor of 0.94 every 2 epochs; "
        "linear decrease to zero; or airbench (Jordan, 2024): linear decrease to 7 % of the peak, with lookahead, "
        "which moves the weights to their running average every 5 steps (Zhang, Lucas, Hinton & Ba, 2019)",
    )
    drop_steps: tuple[int, ...] = setting(
        (30_000, 50_000), help="steps at which the learning rate drops", at_least=0, may_be_empty=True
    )
    warm_up_steps: int = setting(
        0,
        help="number of steps at the beginning with a tenth of the learning rate, or of the linear increase with "
        "--schedule linear or airbench",
        at_least=0,
    )

    def __post_init__(self) -> None:
        if list(self.drop_steps) != sorted(self.drop_steps):
            raise UsageError(f"--drop-steps must be in ascending order. Received: {list(self.drop_steps)}")
        ends = [end for _, end in self.sizes]
        if ends != sorted(set(ends)):
            raise UsageError(
                f"--train-sizes must be in ascending order of the steps. Received: {' '.join(self.train_sizes)}"
            )
        if self.schedule in ("linear", "airbench") and self.warm_up_steps >= self.steps:
            raise UsageError(
                f"--warm-up-steps must be less than --steps with --schedule {self.schedule}. Received: "
                f"{self.warm_up_steps} of {self.steps}"
            )

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Sizes of the training images, each with the step at which it ends."""
        found = [re.fullmatch(r"(\d{1,4}):(\d{1,9})", pair) for pair in self.train_sizes]
        pairs = [(int(match[1]), int(match[2])) for match in found if match is not None]
        if len(pairs) < len(found) or any(size < 4 or size > 4096 or not end for size, end in pairs):
            raise UsageError(
                f"--train-sizes must be pairs SIZE:STEP, such as 20:975, with sizes from 4 to 4096 pixels. Received: "
                f"{' '.join(self.train_sizes)}"
            )
        return pairs

    @property
    def weight_penalty(self) -> float:
        """Weight decay that is part of the loss. That of `muon-free` is decoupled."""
        return 0.0 if self.optimizer == "muon-free" else self.weight_decay


@dataclasses.dataclass(frozen=True)
class Intervals:
    """Intervals of records, evaluations and checkpoints."""

    log_every: int = setting(
        0,
        help="number of steps between training records, of which the steps of the run and all other intervals are "
        "multiples",
        unset="their largest common divisor up to 20",
        at_least=0,
    )
    evaluate_every: int = setting(1000, help="number of steps between evaluations", at_least=1, common=True)
    checkpoint_every: int = setting(500, help="number of steps between checkpoints", at_least=1)


@dataclasses.dataclass(frozen=True)
class Command:
    """Options that are not settings of a run. Programs list their presets."""

    preset: str = setting("paper", help="defaults of all other options", common=True)
    out: str | None = setting(None, help="folder of the run", metavar="DIR", common=True, unset="in runs/")
    resume: bool = setting(False, help="resume the run in --out with its saved settings", common=True)
    evaluate: str | None = setting(
        None,
        help="evaluate the newest checkpoint of this run instead of training, also with logits averaged over each "
        "image and its mirror image",
        metavar="RUN",
        common=True,
    )
    export_only: str | None = setting(
        None,
        help="write the exports of the newest checkpoint of this run again instead of training",
        metavar="RUN",
        common=True,
    )

    def __post_init__(self) -> None:
        if sum((self.resume, self.evaluate is not None, self.export_only is not None)) > 1:
            raise UsageError("--evaluate, --export-only and --resume are mutually exclusive. Use one of them.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """All settings of a run: data set, network, recipe and intervals."""

    data: DataOptions = group(DATA_SETS, "data", by="dataset")
    model: str = setting(
        "identity",
        help="the paper's network; a normalizer-free network for fast training (docs/explanation/fast.md); or a "
        "baseline of the paper's Table 2 with the recipe of its own paper (densenet, all-cnn: in trainers.cifar only)",
        common=True,
    )
    network: Network = group(NETWORKS, "network", by="model")
    recipe: Recipe = group(Recipe, "recipe")
    run: Intervals = group(Intervals, "run")

    def __post_init__(self) -> None:
        if self.recipe.train_sizes and self.data.has_preprocessing:
            raise UsageError(
                "--train-sizes standardizes each scaled image, so it requires --preprocess standardize. Remove "
                "--train-sizes, or change --preprocess."
            )
        if self.recipe.optimizer == "muon" and getattr(self.network, "initializer", None) == "fixup":
            raise UsageError(
                "--optimizer muon keeps the norm of every kernel, so the zero kernels of --initializer fixup would "
                "never learn. Use --optimizer muon-free, or --initializer skipinit."
            )
        run = self.run
        common = math.gcd(self.recipe.steps, run.evaluate_every, run.checkpoint_every)
        every = run.log_every or max(n for n in range(1, LOG_EVERY + 1) if common % n == 0)
        if common % every:
            raise UsageError(
                f"--log-every must divide --steps, --evaluate-every and --checkpoint-every, whose largest common "
                f"divisor is {common}. Received: --log-every {every}"
            )
        object.__setattr__(self, "run", dataclasses.replace(run, log_every=every))

    def identity(self, program: str, digest: str) -> dict[str, object]:
        """Return the values that must be equal when a run is resumed."""
        values = {**select_relevant(as_dict(self)), "log_every": self.run.log_every}
        return {**values, "the program": program, "the checksum of the data": digest}


def select_relevant(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that affect the results of a run."""
    free = {*WHERE_DATA_ARE, *options(Intervals)}
    return {name: value for name, value in settings.items() if name not in free}


@dataclasses.dataclass(frozen=True)
class Task:
    """Settings and folder of one run of a program such as "trainers.cifar", and its data, which are loaded once."""

    program: str
    settings: TrainingSettings
    run: Run

    @property
    def data(self) -> "DataSet":
        """Data set, loaded once. Raises DataError or UsageError if there is none."""
        return self.settings.data.data

    @functools.cached_property
    def identity(self) -> dict[str, object]:
        """Identity of the run, with the checksum of the loaded data."""
        return self.settings.identity(self.program, self.data.digest())

    @property
    def recorded_identity(self) -> dict[str, object]:
        """Identity of an existing run, with the recorded checksum of its data, which are not loaded."""
        return self.settings.identity(self.program, self.run.data().digest)

    def build_network(
        self, image_shape: Sequence[int], classes: int, precision: str = "float32", replicas: int = 1
    ) -> "keras.Model":
        """Build the network, see `trainers.networks.build`."""
        settings, recipe = self.settings, self.settings.recipe
        shape = settings.model, settings.network, image_shape, classes
        return build(*shape, precision, replicas, weight_decay=recipe.weight_penalty, seed=recipe.seed)

    def title(self, parameters: int) -> str:
        """Return the title of the convergence plot."""
        rows, cols, _ = self.data.image_shape
        network = describe(self.settings.model, self.settings.network)
        seed = self.settings.recipe.seed
        return f"{self.data.name}, {rows} x {cols} pixels, {network}, {parameters:,} parameters, seed {seed}"

    def check_batch_size(self, replicas: int) -> None:
        """Raise UsageError unless there are enough images for a batch, which replicas can divide evenly."""
        (images, _), batch_size = self.settings.data.counts, self.settings.recipe.batch_size
        # A larger batch would repeat images, and TensorFlow's kernels crash with 2^31 numbers per batch.
        if batch_size > images:
            raise UsageError(
                f"--batch-size must be at most the {images:,} training images. Received: --batch-size {batch_size}. "
                f"Pass a smaller one, such as --batch-size {max(1, images // 4)}."
            )
        if batch_size % replicas:
            raise UsageError(f"--batch-size must be a multiple of the {replicas} replicas. Received: {batch_size}")

    def check_cluster(self, cluster: "ClusterDescription | None") -> None:
        """Raise UsageError if the settings do not fit the cluster (None: no cluster)."""
        recipe = self.settings.recipe
        if cluster is not None and cluster.asynchronous and (recipe.schedule == "airbench" or recipe.train_sizes):
            raise UsageError(
                "--schedule airbench and --train-sizes require synchronous training, not parameter servers. Remove "
                "them."
            )


def recorded_settings(program: str, run: Run) -> TrainingSettings:
    """Return the settings in the config.json of a run. Raises UsageError if one is invalid, or for another program."""
    return make(TrainingSettings, run.config(program)["settings"], run.config_path)
