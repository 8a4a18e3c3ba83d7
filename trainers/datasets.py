"""Data sets of the training programs: options, and batches of the loaded images, by the names of `--dataset`."""

import abc
import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from idmatters_tf.data.batches import AUGMENTATIONS
from idmatters_tf.data.protocols import EvaluationBatchSource, TrainBatchSource
from trainers.backends import import_tensorflow
from trainers.cli.arguments import UsageError
from trainers.cli.settings import setting
from trainers.cli.startup import print_message

if TYPE_CHECKING:
    import keras
    import numpy as np
    from numpy.typing import NDArray

    from idmatters_tf.data.batches import EvaluationBatches, Pixels, TrainBatches
    from idmatters_tf.data.imagenet import StreamedImageData
    from idmatters_tf.data.images import ImageData
    from idmatters_tf.data.protocols import DataSet
    from idmatters_tf.data.streams import StreamEvaluationBatches, StreamTrainBatches


Data = TypeVar("Data", "ImageData", "StreamedImageData")
# By `--augment` of images in files: augmentation of the library, and the minimum share of an image's area in a crop.
STREAMED = {
    "paper": ("paper", 1.0),
    "standard": ("standard", 0.08),
    "large-crops": ("standard", 0.35),
    "none": ("none", 1.0),
}


@dataclasses.dataclass(frozen=True)
class Files:
    """Location of a data set in files."""

    data_dir: str | None = setting(
        None,
        help="folder with the data",
        unset="$TFDS_DATA_DIR or ~/tensorflow_datasets",
        metavar="DIR",
        common=True,
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
        help="data set: shapes is built in; folder is ImageNet or labeled images in --data-dir, decoded during "
        "training; folder-in-memory decodes all of them once, for the augmentation and preprocessing of cifar10",
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
    augment: Literal["paper", "standard", "all-cnn", "alternating", "large-crops", "none"] = setting(
        "paper",
        help="random flips, and random crops after padding each side by 2 (the paper's base code), 4 (standard) or 5 "
        "(all-cnn) pixels; alternating: reflected padding by 4, and flips of each half of the images in alternate "
        "epochs; with --dataset folder, resizing and flips (paper), or random resized crops of at least 8 % (standard) "
        "or 35 % (large-crops) of the area and flips, with center crops in evaluations",
    )
    # Values of `--augment` for the data set.
    augmentations: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if self.augment not in self.augmentations:
            raise UsageError(
                f"--augment must be one of {', '.join(self.augmentations)} with --dataset {self.dataset}. Received: "
                f"{self.augment}"
            )

    @property
    def has_preprocessing(self) -> bool:
        """True if exports need a layer fitted to the training images."""
        return False

    @property
    def preprocessing(self) -> "keras.layers.Layer | None":
        """That layer; None if each image is standardized on its own."""
        return None

    @property
    def note(self) -> str:
        """End of the description of the data."""
        return ""

    def select(self, data: Data) -> Data:
        """Return the data set with the selected numbers of images."""
        if self.held_out is None:
            return data.first(self.train_images, self.test_images)
        return data.first(self.train_images).hold_out(self.held_out).first(test=self.test_images)

    @property
    @abc.abstractmethod
    def data(self) -> "DataSet":
        """Selected images, loaded once. Raises DataError or UsageError if they were not found."""

    @property
    @abc.abstractmethod
    def counts(self) -> tuple[int, int]:
        """Numbers of training and test images."""

    @abc.abstractmethod
    def train_batches(self, batch_size: int, seed: int) -> TrainBatchSource:
        """Return batches of this global size, in an order and with augmentation determined by the seed."""

    @abc.abstractmethod
    def test_batches(self, batch_size: int) -> EvaluationBatchSource:
        """Return the batches of test images."""

    def explain(self, error: Exception, batch_size: int = 0, seed: int = 0, step: int = 0) -> str:
        """Return an error message if images could not be read, in training near a step, and "" for other errors."""
        return ""


@dataclasses.dataclass(frozen=True)
class InMemory(DataOptions):
    """Options of images in memory."""

    augmentations: ClassVar[tuple[str, ...]] = tuple(AUGMENTATIONS)
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

    @functools.cached_property
    def data(self) -> "ImageData":  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.load()

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.data.train_images), len(self.data.test_images)

    @property
    def has_preprocessing(self) -> bool:
        return self.preprocess != "standardize"

    @functools.cached_property
    def preprocessing(self) -> "keras.layers.Layer | None":  # pyright: ignore[reportIncompatibleVariableOverride]
        if not self.has_preprocessing:
            return None
        from trainers import preprocessing

        return preprocessing.fit(self.preprocess, self.data.train_images)

    def _prepare(self, images: "NDArray[np.uint8]") -> "Pixels":
        """Return the images; without `preprocessing`, as bytes that are standardized batch by batch."""
        if self.preprocessing is None:
            return images
        from trainers import preprocessing

        return preprocessing.apply(self.preprocessing, images)

    def train_batches(self, batch_size: int, seed: int) -> "TrainBatches":
        from idmatters_tf.data.batches import TrainBatches

        augmentation = AUGMENTATIONS[self.augment]
        if augmentation is not None:
            augmentation = dataclasses.replace(augmentation, cutout=self.cutout)
        images = self._prepare(self.data.train_images)
        return TrainBatches(images, self.data.train_labels, batch_size, seed, augmentation)

    def test_batches(self, batch_size: int) -> "EvaluationBatches":
        from idmatters_tf.data.batches import EvaluationBatches

        return EvaluationBatches(self._prepare(self.data.test_images), self.data.test_labels, batch_size)


@dataclasses.dataclass(frozen=True)
class Cifar(OfficialFiles, InMemory):
    """Options of `--dataset cifar10` and `--dataset cifar100`."""

    # With the help for all data sets, of which these are the first.
    data_dir: str | None = setting(
        None,
        help="folder with the data, required for folders of images",
        unset="for CIFAR, $TFDS_DATA_DIR or ~/tensorflow_datasets",
        metavar="DIR",
        common=True,
    )

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
class Folder(Files, DataOptions):
    """Options of `--dataset folder`."""

    size: int = setting(32, help="rows and columns of the images", at_least=16, at_most=4096, common=True)
    skip_broken: bool = setting(
        False, help="decode every image once at the start and skip those that cannot be decoded"
    )
    augmentations: ClassVar[tuple[str, ...]] = tuple(STREAMED)

    @functools.cached_property
    def files(self) -> "StreamedImageData":
        """Selected images, listed but not read."""
        from idmatters_tf.data import imagenet

        if self.data_dir is None:
            raise UsageError(f"--dataset {self.dataset} requires --data-dir, the folder of the images.")
        data = imagenet.load(self.data_dir, size=self.size, train_only=self.held_out is not None)
        if self.skip_broken:
            import_tensorflow()
            from idmatters_tf.data.streams import find_broken

            broken = find_broken(data.train), find_broken(data.test)
            for images, indices in zip((data.train, data.test), broken, strict=True):
                for index in indices[:10]:
                    print_message(f"skipped: {images.describe(index)}")
            data = data.without(*broken)
        return self.select(data)

    @property
    def note(self) -> str:
        """Number of classes and of the files that are not used."""
        skipped, ignored = self.files.skipped, self.files.ignored
        note = f" of {len(self.files.class_names):,} classes"
        if skipped:
            note += f", {skipped:,} broken image{'s' * (skipped != 1)} skipped"
        if ignored:
            named = ", ".join(ignored[:3]) + (", ..." if len(ignored) > 3 else "")
            note += f", not read as images: {len(ignored):,} ({named})"
        return note

    @property
    def data(self) -> "StreamedImageData":
        return self.files

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.files.train), len(self.files.test)

    def train_batches(self, batch_size: int, seed: int) -> "StreamTrainBatches":
        from idmatters_tf.data.streams import StreamTrainBatches

        window, area = STREAMED[self.augment]
        return StreamTrainBatches(self.files.train, batch_size, seed, window, self.size, smallest_area=area)

    def test_batches(self, batch_size: int) -> "StreamEvaluationBatches":
        from idmatters_tf.data.streams import StreamEvaluationBatches

        return StreamEvaluationBatches(self.files.test, batch_size, STREAMED[self.augment][0], self.size)

    def explain(self, error: Exception, batch_size: int = 0, seed: int = 0, step: int = 0) -> str:
        import tensorflow as tf

        kinds = (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.PermissionDeniedError)
        if not isinstance(error, (*kinds, tf.errors.DataLossError)):
            return ""
        from idmatters_tf.data.streams import find_broken

        near = None
        if batch_size:
            # The pipeline reads up to 8 batches ahead of the failed step.
            positions = tf.range(step * batch_size, (step + 8) * batch_size, dtype=tf.int64)
            near = self.train_batches(batch_size, seed).indices(positions).numpy().tolist()
        for images, indices in ((self.files.train, near), (self.files.test, None)):
            bad = find_broken(images, indices)
            if bad:
                path = images.describe(bad[0])
                if isinstance(error, tf.errors.NotFoundError):
                    return f"{path} was not found. Restore it, or pass the new folder of the data as --data-dir."
                remedy = "Replace it, or skip all broken images with --skip-broken and another --out."
                return f"{path} cannot be read as a JPEG or PNG image. {remedy}"
        return ""


@dataclasses.dataclass(frozen=True)
class FolderInMemory(InMemory, Folder):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Options of `--dataset folder-in-memory`."""

    def load(self) -> "ImageData":
        import_tensorflow()
        from idmatters_tf.data.streams import decode_all

        try:
            return decode_all(self.files)
        except Exception as error:
            explained = self.explain(error)
            if not explained:
                raise
            raise UsageError(explained) from error


DATA_SETS: Mapping[str, type[DataOptions]] = {
    "cifar10": Cifar,
    "cifar100": Cifar,
    "shapes": Shapes,
    "folder": Folder,
    "folder-in-memory": FolderInMemory,
}
