"""Data sets in memory: CIFAR-10, CIFAR-100 and the built-in shapes."""

import abc
import dataclasses
import functools
from typing import TYPE_CHECKING, Literal

from trainers.cli.arguments import UsageError
from trainers.cli.settings import setting
from trainers.cli.startup import has_tensorflow, import_tensorflow, print_message
from trainers.datasets.source import EXAMPLES_AT_ONCE, DataOptions, Source

if TYPE_CHECKING:
    import keras

    from idmatters_tf.data.augment import Pixels
    from idmatters_tf.data.batches import EvaluationBatches, TrainBatches
    from idmatters_tf.data.images import ImageData
    from idmatters_tf.data.numpy_batches import NumpyBatches, NumpyEvaluationBatches


@dataclasses.dataclass(frozen=True)
class InMemory(DataOptions):
    """Options of all in-memory data sets."""

    augment: Literal["paper", "standard", "all-cnn", "alternating", "none"] = setting(
        "paper",
        help="random flips, and random crops after padding each side by 2 (the paper's base code), 4 (standard) or 5 "
        "(all-cnn) pixels; alternating: reflected padding by 4, and flips of each half of the images in alternate "
        "epochs; with --dataset folder, resizing and flips (paper), or random resized crops and flips with center "
        "crops in evaluations (standard)",
    )
    cutout: int = setting(
        0,
        help="side in pixels of the square erased from each training image; 0 disables it",
        at_least=0,
        at_most=16_384,
    )
    preprocess: Literal["standardize", "channels", "pixels", "zca"] = setting(
        "standardize",
        help="standardize each image (the paper's code) or each channel over all images, subtract the mean image (He "
        "et al.), or apply contrast normalization and ZCA whitening",
    )

    @abc.abstractmethod
    def load(self) -> "ImageData":
        """Return the selected images."""

    def source(self, batch_size: int, seed: int) -> "InMemorySource":
        """Load the data, see `DataOptions.source`."""
        if self.has_preprocessing and not has_tensorflow():
            raise UsageError(f"--preprocess {self.preprocess} requires TensorFlow. Install it, or use standardize.")
        data = self.load()
        if self.held_out is not None:
            data = data.hold_out(self.held_out)
        return InMemorySource(self, data, batch_size, seed)


@dataclasses.dataclass(frozen=True)
class Cifar(InMemory):
    """Options of `--dataset cifar10` and `--dataset cifar100`."""

    def load(self) -> "ImageData":
        """Return the selected images. Raises DataError if the data were not found."""
        from idmatters_tf.data import cifar
        from idmatters_tf.data._sources import data_root

        location = cifar.locate(self.dataset, self.data_dir)
        if location is not None and location.kind == "tfds":
            import_tensorflow()
        elif location is None and self.download:
            folder = data_root(self.data_dir)
            print_message(f"downloading {self.dataset} to {folder} (--no-download: use local files only)")
        data = cifar.load(self.dataset, self.data_dir, self.download)
        return data.first(self.train_images, self.test_images)


@dataclasses.dataclass(frozen=True)
class Shapes(InMemory):
    """Options of `--dataset shapes`."""

    def load(self) -> "ImageData":
        """Return the generated images."""
        from idmatters_tf.data import shapes

        sizes = {"train": self.train_images, "test": self.test_images}
        return shapes.load(**{split: size for split, size in sizes.items() if size is not None})


class InMemorySource(Source):
    """Batches of images in memory."""

    options: InMemory
    data: "ImageData"

    @property
    def training_images(self) -> int:
        """Number of training images."""
        return len(self.data.train_images)

    @property
    def test_images(self) -> int:
        """Number of test images."""
        return len(self.data.test_images)

    def summary(self) -> str:
        """Return a description of the size of the data."""
        return f"{len(self.data.train_images):,} + {len(self.data.test_images):,} images"

    @functools.cached_property
    def preprocessing(self) -> "keras.layers.Layer | None":  # pyright: ignore[reportIncompatibleVariableOverride]
        """Layer fitted to the training images, or None."""
        if not self.options.has_preprocessing:
            return None
        from trainers.datasets import preprocessing

        return preprocessing.fit(self.options.preprocess, self.data.train_images)

    @functools.cached_property
    def images(self) -> "tuple[Pixels, Pixels]":
        """Training and test images; without `preprocessing`, as bytes that are standardized batch by batch."""
        both = self.data.train_images, self.data.test_images
        if self.preprocessing is None:
            return both
        from trainers.datasets import preprocessing

        train, test = (preprocessing.apply(self.preprocessing, images) for images in both)
        return train, test

    def train_batches(self) -> "TrainBatches | NumpyBatches":
        """Return the training batches, without TensorFlow by NumPy."""
        from idmatters_tf.data.augmentations import AUGMENTATIONS

        options, augmentation = self.options, AUGMENTATIONS[self.options.augment]
        if augmentation is not None:
            augmentation = dataclasses.replace(augmentation, cutout=options.cutout)
        if has_tensorflow():
            from idmatters_tf.data.batches import TrainBatches as Batches
        else:
            from idmatters_tf.data.numpy_batches import NumpyBatches as Batches
        return Batches(self.images[0], self.data.train_labels, self.batch_size, self.seed, augmentation)

    def test_batches(self) -> "EvaluationBatches | NumpyEvaluationBatches":
        """Return the batches of test images, without TensorFlow by NumPy."""
        if not has_tensorflow():
            from idmatters_tf.data.numpy_batches import NumpyEvaluationBatches

            return NumpyEvaluationBatches(self.images[1], self.data.test_labels, self.batch_size)
        from idmatters_tf.data.batches import EvaluationBatches

        return EvaluationBatches(self.images[1], self.data.test_labels, self.batch_size)

    def examples(self, count: int) -> "EvaluationBatches":
        """Return the first `count` training images, or all of a smaller set, without augmentation."""
        from idmatters_tf.data.batches import EvaluationBatches

        images, labels = self.images[0][:count], self.data.train_labels[:count]
        return EvaluationBatches(images, labels, min(EXAMPLES_AT_ONCE, len(images)))
