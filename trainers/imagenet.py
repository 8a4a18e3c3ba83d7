"""Trains the all-convolutional network of section 4.2 of "Identity Matters in Deep Learning" (Hardt & Ma) on ImageNet,
or on any folder of labelled images.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from idmatters_tf.models.layout import IMAGENET, Layout, imagenet_layout
from trainers.cli.arguments import Parser, UsageError
from trainers.cli.settings import as_dict, group, setting
from trainers.cli.startup import import_tensorflow, run_program, say
from trainers.training import networks
from trainers.training.curvature import EXAMPLES_AT_ONCE, Curvature
from trainers.training.program import make_parser, run_task
from trainers.training.settings import (
    Ablations,
    Command,
    Devices,
    Intervals,
    Recipe,
    check_not_decreasing,
    check_optimizer,
    check_widths,
    layout_options,
)
from trainers.training.task import Task

if TYPE_CHECKING:
    import keras

    from idmatters_tf.data.imagenet import StreamedImageData
    from idmatters_tf.data.streams import StreamEvaluationBatches, StreamTrainBatches

# What each model changes of the defaults.
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "identity": {},
    "normalizer-free": {
        **networks.NORMALIZER_FREE_RECIPE,
        "blocks": (2, 2, 3, 2),
        "widths": (64, 128, 256, 512),
        "stem": 48,
        "stem_size": 3,
        "stem_strides": 1,
    },
}
PRESETS = {
    # Section 4.2: these are the defaults of the options themselves.
    "paper": {},
    # For ten classes of 64x64 pixels (Imagenette) on two CPU cores: 60 epochs. The model brings the rest.
    "fast": {
        "model": "normalizer-free",
        "size": 64,
        "smallest_crop": 0.35,
        "batch_size": 128,
        "steps": 4440,
        "warm_up_steps": 444,
        "precision": "bfloat16",
        "evaluate_every": 370,
        "checkpoint_every": 185,
    },
    # He et al.'s widths, normalisation and head, and the usual crops: to compare with.
    "resnet34": {"widths": (64, 128, 256, 512), "norm": "batch", "head": "trained", "augment": "standard"},
}

EXAMPLES = """
examples:
  python -m trainers.imagenet --data-dir ILSVRC2012            the paper's network and recipe, on this machine's GPUs
  python -m trainers.imagenet --data-dir photos --size 64 --blocks 1 1 1 1 --stem 32 --widths 32 64 128 256 \\
      --clip-norm 1 --batch-size 32 --steps 2000 --out runs/trial   a small network on a folder of your own images
  python -m trainers.imagenet --preset fast --data-dir imagenette   64x64 pixels on two CPU cores: docs/fast.md
  python -m trainers.launch --workers 2 -- imagenet ...        the same on two processes of this machine
  python -m trainers.imagenet --resume --out runs/trial        go on after a stop (so does the same command again)
  python -m trainers.plan --help                               how long it takes on which machines

--data-dir holds train/CLASS/*.JPEG and val/CLASS/*.JPEG (or a flat val/ with a file of classes), or CLASS/*.JPEG alone
with --val-fraction 0.1, or imagenet2012 as prepared by TensorFlow Datasets, or the two ILSVRC2012 tar files. Images are
.jpeg, .jpg, .png, .webp or .bmp. On several machines: docs/scaling.md.

exit codes: 0 done; 1 failed while running; 2 bad input; 130, 143 stopped by Ctrl-C, SIGTERM after saving
"""


@dataclasses.dataclass(frozen=True)
class Data:
    """What is trained on."""

    data_dir: str | None = setting(
        None,
        help="folder with the images (default: $TFDS_DATA_DIR or ~/tensorflow_datasets)",
        metavar="DIR",
        free_on_resume=True,
        free_per_task=True,
    )
    val: str = setting("val", help="folder in --data-dir with the validation images", metavar="DIR")
    val_labels: str | None = setting(
        None, help="file of lines 'NAME CLASS' or 'CLASS' for validation images without class folders", metavar="FILE"
    )
    val_fraction: float | None = setting(
        None,
        help="hold this share of each class's training images out for validation, where there is no folder of them; "
        "with --val train also where there is one, to choose settings without it",
        metavar="X",
        above=0,
        below=1,
        added_later=True,
    )
    classes: int | None = setting(
        None,
        help="number of the network's outputs (default: one for each class folder)",
        metavar="N",
        at_least=2,
        at_most=10_000_000,
    )
    size: int = setting(224, help="rows and columns of the images", metavar="N", at_least=16, at_most=4096)
    augment: Literal["paper", "standard", "none"] = setting(
        "paper",
        help="resize and flip; or random resized crops and flips, with centre crops in tests; or resize alone",
    )
    smallest_crop: float = setting(
        0.08,
        help="with --augment standard: the smallest share of an image's area that a random crop takes",
        metavar="X",
        above=0,
        at_most=1,
        added_later=True,
    )
    skip_broken: bool = setting(
        False, help="decode every image once at the start, and leave out those that cannot be decoded"
    )


@dataclasses.dataclass(frozen=True)
class Network:
    """Which network, and its size. Options that the model does not have are None."""

    model: Literal["identity", "normalizer-free"] = setting(
        "identity",
        help="the paper's network, or one with trained gains, which brings a recipe for fast training (docs/fast.md)",
        added_later=True,
    )
    blocks: tuple[int, ...] = setting(
        IMAGENET.blocks, help="residual blocks of each stage", metavar="N", at_least=1, at_most=10_000
    )
    widths: tuple[int, ...] = setting(
        IMAGENET.widths, help="channels of each stage", metavar="C", at_least=1, at_most=100_000
    )
    stem: int = setting(
        IMAGENET.stem, help="channels of the first convolution", metavar="C", at_least=1, at_most=100_000
    )
    stem_size: int = setting(
        IMAGENET.stem_size,
        help="rows and columns of the first kernel",
        metavar="N",
        at_least=1,
        at_most=99,
        added_later=True,
    )
    stem_strides: int = setting(
        IMAGENET.stem_strides,
        help="stride of the first convolution; 1 for small images",
        metavar="N",
        at_least=1,
        at_most=99,
        added_later=True,
    )
    normalizer_free: networks.NormalizerFree = group(networks.NormalizerFree, "network")


@dataclasses.dataclass(frozen=True)
class ImageNetSettings:
    """All settings of a run."""

    data: Data = group(Data, "data")
    network: Network = group(Network, "network")
    ablations: Ablations = group(Ablations, "network")
    recipe: Recipe = group(
        Recipe, "recipe", steps=700_000, batch_size=256, learning_rate=0.1, schedule="decay", drop_steps=()
    )
    curvature: Curvature = group(Curvature, "curvature")
    devices: Devices = group(Devices, "devices and machines")
    run: Intervals = group(Intervals, "run", evaluate_every=5000, checkpoint_every=1000)

    def __post_init__(self) -> None:
        model, blocks, widths = self.network.model, self.network.blocks, self.network.widths
        if len(blocks) != len(widths):
            raise UsageError(
                f"--blocks and --widths must name as many stages. Received: --blocks {' '.join(map(str, blocks))} "
                f"--widths {' '.join(map(str, widths))}"
            )
        networks.check_options(model, as_dict(self), RECIPES)
        check_optimizer(self.recipe, self.ablations)
        if model == "identity":
            check_widths(self.layout())
        else:
            check_not_decreasing(self.network.stem, widths, f"--model {model}")
            networks.check_stem(self.network.stem, self.network.stem_size, self.network.normalizer_free)

    def layout(self, replicas: int = 1) -> Layout:
        """The layout of `--model identity`."""
        network = self.network
        stem = (network.stem, network.stem_size, network.stem_strides)
        return imagenet_layout(network.blocks, network.widths, *stem, **layout_options(self.ablations, replicas))


@dataclasses.dataclass(frozen=True)
class ImageNetCommand(Command):
    """What to do."""

    preset: Literal["paper", "fast", "resnet34"] = setting(
        "paper",
        help="defaults of all other options: the paper's recipe; one for small images on two CPU cores "
        "(docs/fast.md); or He et al.'s network to compare with",
    )


@dataclasses.dataclass
class ImageNet(Task["StreamedImageData"]):
    """Training on folders of images."""

    settings: ImageNetSettings
    program: ClassVar[str] = "trainers.imagenet"
    settings_type: ClassVar[type] = ImageNetSettings
    command_type: ClassVar[type] = ImageNetCommand
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    @classmethod
    def resolve(cls, preset: Mapping[str, Any], typed: Mapping[str, Any]) -> ImageNetSettings:
        """The model brings its recipe."""
        model = typed.get("model", preset.get("model", "identity"))
        return networks.resolve(ImageNetSettings, model, RECIPES[model], preset, typed)

    @classmethod
    def default_out(cls, settings: ImageNetSettings, preset: str) -> str:
        return "runs/imagenet-fast" if preset == "fast" else "runs/imagenet"

    def load(self) -> "StreamedImageData":
        from idmatters_tf.data import imagenet

        wanted = self.settings.data
        location = imagenet.locate(wanted.data_dir)
        if location is not None and location.kind in ("tfds", "tars"):
            import_tensorflow()
        data = imagenet.load(wanted.data_dir, wanted.val, wanted.val_labels, wanted.size, wanted.val_fraction)
        if wanted.skip_broken:
            data = _without_broken(data)
        if wanted.classes is None:
            return data
        if wanted.classes < data.classes:
            raise UsageError(f"--classes must be at least the {data.classes} of the data. Received: {wanted.classes}")
        return dataclasses.replace(data, outputs=wanted.classes)

    @property
    def training_images(self) -> int:
        return len(self.data.train)

    def summary(self) -> str:
        data = self.data
        skipped = f", {data.skipped:,} broken ones left out" if data.skipped else ""
        if data.ignored:
            named = ", ".join(data.ignored[:3]) + (", ..." if len(data.ignored) > 3 else "")
            skipped += f", not read as images: {len(data.ignored):,} ({named})"
        return f"{len(data.train):,} + {len(data.test):,} images of {len(data.class_names):,} classes{skipped}"

    def network(self, image_shape: Sequence[int], classes: int, replicas: int = 1) -> "keras.Model":
        recipe, network = self.settings.recipe, self.settings.network
        if network.model == "normalizer-free":
            from idmatters_tf.models.normalizer_free import normalizer_free_resnet

            own = networks.normalizer_free_options(network.normalizer_free)
            sizes = {name: getattr(network, name) for name in ("blocks", "widths", "stem", "stem_size", "stem_strides")}
            own |= {"weight_decay": recipe.weight_penalty, "seed": recipe.seed}
            return normalizer_free_resnet(tuple(image_shape), classes, **sizes, **own)
        from idmatters_tf.models.identity import identity_network

        layout = self.settings.layout(replicas)
        return identity_network(
            layout, tuple(image_shape), classes, recipe.weight_penalty, recipe.seed, name="identity_resnet34"
        )

    def train_batches(self) -> "StreamTrainBatches":
        from idmatters_tf.data.streams import StreamTrainBatches

        recipe, data = self.settings.recipe, self.settings.data
        return StreamTrainBatches(
            self.data.train, recipe.batch_size, recipe.seed, data.augment, data.size, data.smallest_crop
        )

    def test_batches(self) -> "StreamEvaluationBatches":
        from idmatters_tf.data.streams import StreamEvaluationBatches

        data = self.settings.data
        return StreamEvaluationBatches(self.data.test, self.settings.recipe.batch_size, data.augment, data.size)

    def examples(self, count: int) -> "StreamEvaluationBatches":
        import tensorflow as tf

        from idmatters_tf.data.streams import StreamEvaluationBatches

        data, images = self.settings.data, self.data.train
        # Those of the first steps: in their folders they are sorted by class.
        chosen = self.train_batches().indices(tf.range(min(count, len(images)), dtype=tf.int64)).numpy().tolist()
        examples = images.without(set(range(len(images))).difference(chosen))
        return StreamEvaluationBatches(examples, min(EXAMPLES_AT_ONCE, len(examples)), data.augment, data.size)

    @property
    def preprocess_on_device(self) -> Callable | None:
        from idmatters_tf.data._decoding import preprocess_on_device

        return functools.partial(preprocess_on_device, size=self.settings.data.size)

    def title(self, parameters: int) -> str:
        network, size = self.settings.network, self.settings.data.size
        return (
            f"blocks {'/'.join(map(str, network.blocks))} of widths {'/'.join(map(str, network.widths))}, "
            f"{size} x {size} pixels, {parameters:,} parameters, seed {self.settings.recipe.seed}"
        )

    def explain(self, error: Exception, step: int) -> str:
        import tensorflow as tf

        errors = (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.PermissionDeniedError)
        if not isinstance(error, (*errors, tf.errors.DataLossError)):
            return ""
        from idmatters_tf.data.streams import broken

        # What the pipeline has read ahead of the step that failed.
        batch_size = self.settings.recipe.batch_size
        positions = tf.range(step * batch_size, (step + 8) * batch_size, dtype=tf.int64)
        ahead = self.train_batches().indices(positions).numpy().tolist()
        for images, places in ((self.data.train, ahead), (self.data.test, None)):
            bad = broken(images, places)
            if bad:
                return (
                    f"{images.where(bad[0])} cannot be read as an image. Replace it, or leave out all broken ones "
                    f"with --skip-broken and another --out."
                )
        return ""


def _without_broken(data: "StreamedImageData") -> "StreamedImageData":
    from trainers.run.progress import Progress

    import_tensorflow()
    from idmatters_tf.data.streams import broken

    def find(images):
        with Progress(len(images) // 100, "looking for broken images", unit="hundreds", leave=False) as progress:
            bad = broken(images, advance=progress.advance)
        for place in bad[:10]:
            say(f"left out: {images.where(place)}")
        return bad

    return data.without_broken(find)


def parser() -> Parser:
    """The command line of this program; the defaults shown are the paper's recipe."""
    return make_parser(ImageNet, __doc__, EXAMPLES)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program; returns its exit code."""
    return run_task(ImageNet, parser(), argv)


if __name__ == "__main__":
    run_program(main)
