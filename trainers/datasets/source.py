"""Base classes of data sets: options, and batches of the loaded images."""

import abc
import dataclasses
from typing import TYPE_CHECKING, Any

from idmatters_tf.data.protocols import EvaluationBatchSource, TrainBatchSource
from trainers.cli.settings import setting

if TYPE_CHECKING:
    import keras

# Maximum batch size of `Source.examples`.
EXAMPLES_AT_ONCE = 64


@dataclasses.dataclass(frozen=True)
class DataOptions(abc.ABC):
    """Options of a data set. Subclasses add fields and are listed in `trainers.datasets.DATA_SETS`.

    Attributes:
        dataset: key in `DATA_SETS`.
    """

    dataset: str = setting(
        "cifar10",
        help="data set: shapes is built in; folder is ImageNet or any folder of labeled images, decoded during "
        "training; folder-in-memory is the same, decoded once, with all options of cifar10",
        common=True,
    )
    data_dir: str | None = setting(
        None, help="folder with the data", unset="$TFDS_DATA_DIR or ~/tensorflow_datasets", metavar="DIR", common=True
    )
    download: bool = setting(True, help="download CIFAR if it is missing")
    train_images: int | None = setting(
        None, help="use only the first N training images; in folders, N across all classes", at_least=1
    )
    test_images: int | None = setting(
        None, help="use only the first N test images; in folders, N across all classes", at_least=1
    )
    held_out: int | None = setting(
        None,
        help="hold out the last N training images and evaluate on them instead of the test images, to choose settings",
        at_least=1,
    )

    @property
    def has_preprocessing(self) -> bool:
        """True if exports need a layer fitted to the training images."""
        return getattr(self, "preprocess", "standardize") != "standardize"

    @property
    def test_split(self) -> str:
        """Name of the part of the data set that contains the test images."""
        return "test" if self.held_out is None else "train"

    @abc.abstractmethod
    def source(self, batch_size: int, seed: int) -> "Source":
        """Load the data.

        Args:
            batch_size: size of the global batch.
            seed: seed of the order of the images and their augmentation.

        Raises:
            DataError, UsageError: the data were not found.
        """


class Source(abc.ABC):
    """Loaded images as batches.

    Args:
        options: the `DataOptions`.
        data: the data set.
        batch_size: size of the global batch.
        seed: seed of the order of the images and their augmentation.

    Attributes:
        preprocessing: layer fitted to the training images, for exports; None if each image is standardized on its own.
    """

    preprocessing: "keras.layers.Layer | None" = None

    def __init__(self, options: Any, data: Any, batch_size: int, seed: int):
        self.options, self.data, self.batch_size, self.seed = options, data, batch_size, seed

    @property
    @abc.abstractmethod
    def training_images(self) -> int:
        """Number of training images."""

    @property
    @abc.abstractmethod
    def test_images(self) -> int:
        """Number of test images."""

    @abc.abstractmethod
    def summary(self) -> str:
        """Return a description of the size of the data."""

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
        """Return an error message if data could not be read at a step, and "" for other errors."""
        return ""
