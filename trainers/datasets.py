"""Data sets of the training programs: options, and batches of the loaded images, by the names of `--dataset`."""

import abc
import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from idmatters_tf.data.protocols import EvaluationBatchSource, TrainBatchSource
from trainers.backends import import_tensorflow
from trainers.cli.arguments import UsageError
from trainers.cli.settings import setting
from trainers.cli.startup import print_message

if TYPE_CHECKING:
    import keras

    from idmatters_tf.data.batches import EvaluationBatches, Pixels, TrainBatches
    from idmatters_tf.data.imagenet import StreamedImageData
    from idmatters_tf.data.images import ImageData
    from idmatters_tf.data.streams import StreamEvaluationBatches, StreamTrainBatches

Data = TypeVar("Data", "ImageData", "StreamedImageData")
# Maximum batch size of `ImageSource.examples`.
EXAMPLES_AT_ONCE = 64


@dataclasses.dataclass(frozen=True)
class Files:
    """Location of a data set in files."""

    data_dir: str | None = setting(
        None, help="folder with the data", unset="$TFDS_DATA_DIR or ~/tensorflow_datasets", metavar="DIR", common=True
    )


@dataclasses.dataclass(frozen=True)
class OfficialFiles(Files):
    """Location of a data set of `idmatters_tf.data.official`."""

    download: bool = setting(False, help="download the data set if it is missing", common=True)

    def load_official(self, name: str) -> "ImageData":
        """Load a data set. Raises DataError if it was not found."""
        from idmatters_tf.data import official

        location = official.locate(name, self.data_dir)
        if self.download if location is None else location.kind == "tfds":
            import_tensorflow()
        if self.download and location is None:
            print_message(f"downloading {name} to {self.data_dir or 'the folder of TensorFlow Datasets'}")
        return official.load(name, self.data_dir, self.download)


@dataclasses.dataclass(frozen=True)
class DataOptions(abc.ABC):
    """Options of a data set. Subclasses are listed in `DATA_SETS`."""

    dataset: str = setting(
        "cifar10",
        help="data set: shapes is built in; folder is ImageNet or any folder of labeled images, decoded during "
        "training or, with --in-memory, once",
        common=True,
    )
    train_images: int | None = setting(
        None, help="use only the first N training images; in folders, N across all classes", at_least=1
    )
    test_images: int | None = setting(
        None, help="use only the first N test images; in folders, N across all classes", at_least=1
    )
    held_out: int | None = setting(
        None,
        help="hold out the last N training images (in folders, of a fixed random order) and evaluate on them instead "
        "of the test images: to choose settings, or for a folder without val/",
        at_least=1,
        common=True,
    )

    @property
    def has_preprocessing(self) -> bool:
        """True if exports need a layer fitted to the training images."""
        return getattr(self, "preprocess", "standardize") != "standardize"

    @property
    def test_split(self) -> str:
        """Name of the part of the data set that contains the test images."""
        return "test" if self.held_out is None else "train"

    def select(self, data: Data) -> Data:
        """Return the data set with the selected numbers of images."""
        if self.held_out is None:
            return data.first(self.train_images, self.test_images)
        return data.first(self.train_images).hold_out(self.held_out).first(test=self.test_images)

    @abc.abstractmethod
    def source(self, batch_size: int, seed: int) -> "ImageSource":
        """Load the data, as batches of this global size, in an order and with augmentation determined by the seed.

        Raises:
            DataError, UsageError: the data were not found.
        """


@dataclasses.dataclass(frozen=True)
class InMemory(DataOptions):
    """Options of images in memory."""

    augment: Literal["paper", "standard", "all-cnn", "alternating", "none"] = setting(
        "paper",
        help="random flips, and random crops after padding each side by 2 (the paper's base code), 4 (standard) or 5 "
        "(all-cnn) pixels; alternating: reflected padding by 4, and flips of each half of the images in alternate "
        "epochs; with --dataset folder without --in-memory, resizing and flips (paper), or random resized crops and "
        "flips with center crops in evaluations (standard)",
    )
    cutout: int = setting(
        0, help="side in pixels of the square erased from each training image; 0 disables it", at_least=0, at_most=16384
    )
    preprocess: Literal["standardize", "channels", "pixels"] = setting(
        "standardize",
        help="standardize each image (the paper's code) or each channel over all images, or subtract the mean image "
        "(He et al.)",
    )

    @abc.abstractmethod
    def load(self) -> "ImageData":
        """Return the selected images. Raises DataError if the data were not found."""

    def source(self, batch_size: int, seed: int) -> "ImageSource":
        return InMemorySource(self, self.load(), batch_size, seed)


@dataclasses.dataclass(frozen=True)
class Cifar(OfficialFiles, InMemory):
    """Options of `--dataset cifar10` and `--dataset cifar100`."""

    def load(self) -> "ImageData":
        return self.select(self.load_official(self.dataset))


@dataclasses.dataclass(frozen=True)
class Shapes(InMemory):
    """Options of `--dataset shapes`."""

    def load(self) -> "ImageData":
        from idmatters_tf.data import shapes

        sizes = {"train": self.train_images, "test": self.test_images}
        return self.select(shapes.load(**{split: size for split, size in sizes.items() if size is not None}))


@dataclasses.dataclass(frozen=True)
class Folder(Files, InMemory):
    """Options of `--dataset folder`."""

    size: int = setting(32, help="rows and columns of the images", at_least=16, at_most=4096, common=True)
    skip_broken: bool = setting(
        False, help="decode every image once at the start and skip those that cannot be decoded"
    )
    in_memory: bool = setting(
        False, help="decode all images once, resized, and keep them in memory; with all options of cifar10"
    )
    smallest_crop: float = setting(
        0.08,
        help="minimum share of an image's area in a random crop, with --augment standard without --in-memory",
        above=0,
        at_most=1,
    )

    def __post_init__(self) -> None:
        further = {
            f"--augment {self.augment}": self.augment not in ("paper", "standard", "none"),
            f"--cutout {self.cutout}": self.cutout > 0,
            f"--preprocess {self.preprocess}": self.has_preprocessing,
        }
        if any(further.values()) and not self.in_memory:
            raise UsageError(
                f"{' and '.join(option for option in further if further[option])} with --dataset folder requires "
                f"--in-memory. Add it, or omit the option."
            )

    @property
    def test_split(self) -> str:
        return "validation" if self.held_out is None else "train"

    def list_images(self) -> "StreamedImageData":
        """Return the selected images, listed but not read."""
        from idmatters_tf.data import imagenet

        location = imagenet.locate(self.data_dir)
        if location is not None and location.kind == "tfds":
            import_tensorflow()
        data = imagenet.load(self.data_dir, size=self.size, train_only=self.held_out is not None)
        if self.skip_broken:
            import_tensorflow()
            data = data.without_broken(_find_broken)
        return self.select(data)

    def source(self, batch_size: int, seed: int) -> "ImageSource":
        data = self.list_images()
        note = _describe_files(data)
        if self.in_memory:
            return InMemorySource(self, _decode(data), batch_size, seed, note)
        return StreamedSource(self, data, batch_size, seed, note)

    def load(self) -> "ImageData":
        return _decode(self.list_images())


DATA_SETS: Mapping[str, type[DataOptions]] = {
    "cifar10": Cifar,
    "cifar100": Cifar,
    "shapes": Shapes,
    "folder": Folder,
}


class ImageSource(abc.ABC):
    """Loaded images as batches of a global size.

    Attributes:
        note: end of the description of the data.
        preprocessing: layer fitted to the training images, for exports; None if each image is standardized on its own.
    """

    preprocessing: "keras.layers.Layer | None" = None

    def __init__(self, options: Any, data: Any, batch_size: int, seed: int, note: str = ""):
        self.options, self.data, self.batch_size, self.seed, self.note = options, data, batch_size, seed, note
        self.training_images, self.test_images = map(len, self._parts())

    @abc.abstractmethod
    def _parts(self) -> tuple[Any, Any]:
        """Return the training images and the test images."""

    def summary(self) -> str:
        """Return a description of the size of the data."""
        return f"{self.training_images:,} + {self.test_images:,} images{self.note}"

    @abc.abstractmethod
    def train_batches(self) -> TrainBatchSource:
        """Return the training batches."""

    @abc.abstractmethod
    def test_batches(self) -> EvaluationBatchSource:
        """Return the batches of test images."""

    @abc.abstractmethod
    def examples(self, count: int) -> EvaluationBatchSource:
        """Return the first `count` training images, or all of a smaller set, without augmentation."""

    def explain(self, error: Exception, step: int) -> str:
        """Return an error message if data could not be read near a step, and "" for other errors."""
        return ""


class InMemorySource(ImageSource):
    """Batches of images in memory, computed by NumPy."""

    def _parts(self) -> tuple[Any, Any]:
        return self.data.train_images, self.data.test_images

    @functools.cached_property
    def preprocessing(self) -> "keras.layers.Layer | None":  # pyright: ignore[reportIncompatibleVariableOverride]
        if not self.options.has_preprocessing:
            return None
        from trainers import preprocessing

        return preprocessing.fit(self.options.preprocess, self.data.train_images)

    @functools.cached_property
    def images(self) -> "tuple[Pixels, Pixels]":
        """Training and test images; without `preprocessing`, as bytes that are standardized batch by batch."""
        if self.preprocessing is None:
            return self._parts()
        from trainers import preprocessing

        train, test = (preprocessing.apply(self.preprocessing, images) for images in self._parts())
        return train, test

    def train_batches(self) -> "TrainBatches":
        from idmatters_tf.data.batches import AUGMENTATIONS, TrainBatches

        augmentation = AUGMENTATIONS[self.options.augment]
        if augmentation is not None:
            augmentation = dataclasses.replace(augmentation, cutout=self.options.cutout)
        return TrainBatches(self.images[0], self.data.train_labels, self.batch_size, self.seed, augmentation)

    def test_batches(self) -> "EvaluationBatches":
        from idmatters_tf.data.batches import EvaluationBatches

        return EvaluationBatches(self.images[1], self.data.test_labels, self.batch_size)

    def examples(self, count: int) -> "EvaluationBatches":
        from idmatters_tf.data.batches import EvaluationBatches

        images, labels = self.images[0][:count], self.data.train_labels[:count]
        return EvaluationBatches(images, labels, min(EXAMPLES_AT_ONCE, len(images)))


class StreamedSource(ImageSource):
    """Images that are read and decoded during training."""

    def _parts(self) -> tuple[Any, Any]:
        return self.data.train, self.data.test

    def train_batches(self) -> "StreamTrainBatches":
        from idmatters_tf.data.streams import StreamTrainBatches

        shown = self.options.augment, self.options.size, self.options.smallest_crop
        return StreamTrainBatches(self.data.train, self.batch_size, self.seed, *shown)

    def test_batches(self) -> "StreamEvaluationBatches":
        from idmatters_tf.data.streams import StreamEvaluationBatches

        return StreamEvaluationBatches(self.data.test, self.batch_size, self.options.augment, self.options.size)

    def examples(self, count: int) -> "StreamEvaluationBatches":
        """Return the first `count` training images in the order of training, without augmentation."""
        import tensorflow as tf

        from idmatters_tf.data.streams import StreamEvaluationBatches

        images = self.data.train
        # Folders are sorted by class, so that their first images have one class.
        chosen = self.train_batches().indices(tf.range(min(count, len(images)), dtype=tf.int64)).numpy().tolist()
        examples = images.without(set(range(len(images))).difference(chosen))
        size = min(EXAMPLES_AT_ONCE, len(examples))
        return StreamEvaluationBatches(examples, size, self.options.augment, self.options.size)

    def explain(self, error: Exception, step: int) -> str:
        """Return an error message with the first broken image near a step, and "" for other errors."""
        import tensorflow as tf

        # The pipeline reads up to 8 batches ahead of the failed step.
        positions = tf.range(step * self.batch_size, (step + 8) * self.batch_size, dtype=tf.int64)
        ahead = self.train_batches().indices(positions).numpy().tolist()
        return _explain_unreadable(error, " and another --out", (self.data.train, ahead), (self.data.test, None))


def _decode(data: "StreamedImageData") -> "ImageData":
    """Return decoded images. Raises a UsageError that names an image that cannot be decoded."""
    import_tensorflow()
    from idmatters_tf.data.streams import decode_all

    try:
        return decode_all(data)
    except Exception as error:
        sentences = _explain_unreadable(error, "", (data.train, None), (data.test, None))
        if not sentences:
            raise
        raise UsageError(sentences) from error


def _describe_files(data: "StreamedImageData") -> str:
    """Return the number of classes and of the files that are not used, for the summary of a source."""
    skipped = f", {data.skipped:,} broken image{'s' * (data.skipped != 1)} skipped" if data.skipped else ""
    if data.ignored:
        named = ", ".join(data.ignored[:3]) + (", ..." if len(data.ignored) > 3 else "")
        skipped += f", not read as images: {len(data.ignored):,} ({named})"
    return f" of {len(data.class_names):,} classes{skipped}"


def _explain_unreadable(error: Exception, more: str, *parts: tuple[Any, Any]) -> str:
    """Return an error message about the first image that is missing or broken, and "" for errors of other kinds.

    Args:
        error: error of TensorFlow.
        more: end of the remedy for broken images.
        parts: pairs of images and the indices of those to search, or None for all.
    """
    import tensorflow as tf

    errors = (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.PermissionDeniedError)
    if not isinstance(error, (*errors, tf.errors.DataLossError)):
        return ""
    from idmatters_tf.data.streams import find_broken

    for images, indices in parts:
        bad = find_broken(images, indices)
        if bad:
            path = images.describe(bad[0])
            if isinstance(error, tf.errors.NotFoundError):
                return f"{path} was not found. Restore it, or pass the new folder of the data as --data-dir."
            remedy = f"Replace it, or skip all broken images with --skip-broken{more}."
            return f"{path} cannot be read as a JPEG or PNG image. {remedy}"
    return ""


def _find_broken(images: Any) -> list[int]:
    """Return the indices of the images that cannot be decoded, with a message about the first ten."""
    from idmatters_tf._presentation.progress import Progress
    from idmatters_tf.data.streams import find_broken

    with Progress(len(images) // 100, "looking for broken images", unit="hundreds", delay=0) as progress:
        bad = find_broken(images, advance=progress.advance)
    for index in bad[:10]:
        print_message(f"skipped: {images.describe(index)}")
    return bad
