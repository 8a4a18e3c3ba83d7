"""Trains the all-convolutional residual network of "Identity Matters in Deep Learning" (Hardt & Ma, Table 1), or one
of those that the paper compares it with.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trainers.cli.arguments import Parser, UsageError
from trainers.cli.settings import group, setting
from trainers.cli.startup import explained, import_tensorflow, run_program
from trainers.training import networks
from trainers.training.curvature import EXAMPLES_AT_ONCE, Curvature
from trainers.training.program import make_parser, run_task
from trainers.training.settings import Ablations, Command, Devices, Intervals, Recipe, check_optimizer
from trainers.training.task import Task

if TYPE_CHECKING:
    import keras

    from idmatters_tf.data.augment import Pixels
    from idmatters_tf.data.batches import EvaluationBatches, TrainBatches
    from idmatters_tf.data.images import ImageData

EXAMPLES = """
examples:
  python -m trainers.cifar --preset quick                      the built-in data, two minutes on two CPU cores
  python -m trainers.cifar --dataset cifar10                   the paper's network and recipe
  python -m trainers.cifar --dataset cifar10 --blocks 3 --widths 32 64 128 --steps 4000 --out runs/small
  python -m trainers.cifar --model resnet --depth 20 --out runs/resnet20
  python -m trainers.cifar --resume --out runs/small           go on after a stop (so does the same command again)
  python -m trainers.cifar --evaluate runs/small               test error of the newest checkpoint
  python -m trainers.cifar --export-only runs/small            model.keras and SavedModel of the newest checkpoint
  tensorboard --logdir runs                                    follow the training

exit codes: 0 done; 1 failed while running; 2 bad input; 130, 143 stopped by Ctrl-C, SIGTERM after saving
"""

PRESETS = {
    # The recipe of the paper's section 4.1: these are the defaults of the options themselves.
    "paper": {},
    # See docs/fast.md. The model brings the recipe.
    "fast": {
        "model": "normalizer-free",
        "precision": "bfloat16",
        "evaluate_every": 500,
        "checkpoint_every": 250,
    },
    # About two minutes on two CPU cores with the built-in data.
    "quick": {
        "dataset": "shapes",
        "blocks": 1,
        "widths": (16, 32, 64),
        "stem": 16,
        "steps": 1000,
        "learning_rate": 0.1,
        "drop_steps": (700, 900),
        "clip_norm": 1.0,
        "evaluate_every": 200,
        "checkpoint_every": 200,
    },
}


@dataclasses.dataclass(frozen=True)
class Data:
    """What is trained on."""

    dataset: Literal["cifar10", "cifar100", "shapes"] = setting("cifar10", help="the data set; shapes is built in")
    data_dir: str | None = setting(
        None,
        help="folder with the official binary files or a prepared TensorFlow data set (default: $TFDS_DATA_DIR or "
        "~/tensorflow_datasets)",
        metavar="DIR",
        free_on_resume=True,
        free_per_task=True,
    )
    train_images: int | None = setting(
        None, help="use only the first N training images (default: all)", metavar="N", at_least=1
    )
    test_images: int | None = setting(
        None, help="use only the first N test images (default: all)", metavar="N", at_least=1
    )
    download: bool = setting(True, help="never download missing data", free_on_resume=True, free_per_task=True)
    augment: Literal["paper", "standard", "all-cnn", "none"] = setting(
        "paper",
        help="random flips, and random crops after zero padding by 2 (the paper's base code), 4 (standard) or 5 "
        "(all-cnn) pixels on each side; or none of it",
    )
    padding_mode: Literal["zero", "reflect"] = setting("zero", help="what images are padded with before a crop")
    flips: Literal["random", "alternate"] = setting(
        "random", help="flip at random, or one half of the images in every other epoch and the other half in between"
    )
    cutout: int = setting(
        0,
        help="side of a square that is erased from each training image (default: none)",
        metavar="N",
        at_least=0,
        at_most=16_384,
    )
    held_out: int | None = setting(
        None,
        help="hold the last N training images out and test on them, to choose settings without the test images",
        metavar="N",
        at_least=1,
    )
    preprocess: Literal["standardize", "channels", "pixels", "zca"] = setting(
        "standardize",
        help="standardise each image by itself (the paper's code) or each channel over all images, subtract the mean "
        "image (He et al.), or contrast normalisation and ZCA whitening",
    )


@dataclasses.dataclass(frozen=True)
class CifarSettings:
    """All settings of a run."""

    data: Data = group(Data, "data")
    network: networks.Network = group(networks.Network, "network")
    ablations: Ablations = group(Ablations, "network")
    recipe: Recipe = group(Recipe, "recipe")
    curvature: Curvature = group(Curvature, "curvature")
    devices: Devices = group(Devices, "devices and machines")
    run: Intervals = group(Intervals, "run")

    def __post_init__(self) -> None:
        networks.check(self.network, self.ablations)
        check_optimizer(self.recipe, self.ablations)


@dataclasses.dataclass(frozen=True)
class CifarCommand(Command):
    """What to do."""

    preset: Literal["paper", "fast", "quick"] = setting(
        "paper",
        help="defaults of all other options: the paper's recipe; one for two CPU cores (docs/fast.md); "
        "or a small network on the built-in data",
    )


@dataclasses.dataclass
class Cifar(Task["ImageData"]):
    """Training on CIFAR or shapes."""

    settings: CifarSettings
    program: ClassVar[str] = "trainers.cifar"
    settings_type: ClassVar[type] = CifarSettings
    command_type: ClassVar[type] = CifarCommand
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    @classmethod
    def resolve(cls, preset: Mapping[str, Any], typed: Mapping[str, Any]) -> CifarSettings:
        """The model brings the recipe of its paper."""
        model = typed.get("model", preset.get("model", "identity"))
        recipe = networks.recipe_of(model, typed.get("depth", preset.get("depth")))
        return networks.resolve(CifarSettings, model, recipe, preset, typed)

    @classmethod
    def default_out(cls, settings: CifarSettings, preset: str) -> str:
        name = {"quick": "quick", "fast": f"{settings.data.dataset}-fast"}
        return f"runs/{name.get(preset, settings.data.dataset)}"

    def load(self) -> "ImageData":
        data, count = self._load(), self.settings.data.held_out
        if count is not None and count >= len(data.train_images):
            raise UsageError(f"--held-out must be less than the {len(data.train_images)} images. Received: {count}")
        return data if count is None else data.hold_out(count)

    def _load(self) -> "ImageData":
        from idmatters_tf.data import cifar, shapes
        from idmatters_tf.data.images import DataNotFound

        wanted = self.settings.data
        if wanted.dataset == "shapes":
            sizes = {"train": wanted.train_images, "test": wanted.test_images}
            return shapes.load(**{split: size for split, size in sizes.items() if size is not None})
        location = cifar.locate(wanted.dataset, wanted.data_dir)
        if location is not None and location.kind == "tfds":
            import_tensorflow()
        try:
            data = cifar.load(wanted.dataset, wanted.data_dir, wanted.download)
        except DataNotFound as error:
            sentence, _ = explained(error)
            raise UsageError(f"{sentence} Or train on the built-in images: --dataset shapes.") from error
        return data.first(wanted.train_images, wanted.test_images)

    @property
    def training_images(self) -> int:
        return len(self.data.train_images)

    def summary(self) -> str:
        return f"{len(self.data.train_images):,} + {len(self.data.test_images):,} images"

    def network(self, image_shape: Sequence[int], classes: int, replicas: int = 1) -> "keras.Model":
        recipe = self.settings.recipe
        return networks.build(
            self.settings.network,
            self.settings.ablations,
            replicas=replicas,
            input_shape=tuple(image_shape),
            classes=classes,
            weight_decay=recipe.weight_penalty,
            seed=recipe.seed,
        )

    @property
    def has_preprocessing(self) -> bool:
        return self.settings.data.preprocess != "standardize"

    @functools.cached_property
    def preprocessing(self) -> "keras.layers.Layer | None":
        if not self.has_preprocessing:
            return None
        from trainers.training import preprocessing

        return preprocessing.fit(self.settings.data.preprocess, self.data.train_images)

    @functools.cached_property
    def images(self) -> "tuple[Pixels, Pixels]":
        """(training images, test images); bytes are standardised later, batch by batch."""
        both = self.data.train_images, self.data.test_images
        if self.preprocessing is None:
            return both
        from trainers.training import preprocessing

        train, test = (preprocessing.apply(self.preprocessing, images) for images in both)
        return train, test

    def train_batches(self) -> "TrainBatches":
        from idmatters_tf.data.augment import AUGMENTATIONS
        from idmatters_tf.data.batches import TrainBatches

        recipe, data, augmentation = self.settings.recipe, self.settings.data, AUGMENTATIONS[self.settings.data.augment]
        if augmentation is not None:
            changes = {"padding_mode": data.padding_mode, "flips": data.flips, "cutout": data.cutout}
            augmentation = dataclasses.replace(augmentation, **changes)
        return TrainBatches(self.images[0], self.data.train_labels, recipe.batch_size, recipe.seed, augmentation)

    def test_batches(self) -> "EvaluationBatches":
        from idmatters_tf.data.batches import EvaluationBatches

        return EvaluationBatches(self.images[1], self.data.test_labels, self.settings.recipe.batch_size)

    def examples(self, count: int) -> "EvaluationBatches":
        from idmatters_tf.data.batches import EvaluationBatches

        images, labels = self.images[0][:count], self.data.train_labels[:count]
        return EvaluationBatches(images, labels, min(EXAMPLES_AT_ONCE, len(images)))

    def title(self, parameters: int) -> str:
        settings = self.settings
        network = networks.title(settings.network)
        return f"{settings.data.dataset}, {network}, {parameters:,} parameters, seed {settings.recipe.seed}"


def parser() -> Parser:
    """The command line of this program; the defaults shown are the paper's recipe."""
    return make_parser(Cifar, __doc__, EXAMPLES)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program; returns its exit code."""
    return run_task(Cifar, parser(), argv)


if __name__ == "__main__":
    run_program(main)
