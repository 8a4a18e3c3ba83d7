"""Labeled images in memory, and the errors of all data sets."""

import dataclasses
import os
import zlib
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Path: TypeAlias = str | os.PathLike[str]


class DataError(ValueError):
    """Missing or invalid data. The message contains the problem, the path and the remedy.

    Args:
        message: one or two sentences.
        arguments: names of the function's arguments that may need another value, such as ("data_dir",). Programs derive
            the names of their options from them.

    Attributes:
        exit_code: exit code of a program that ends with this error.
    """

    exit_code = 2

    def __init__(self, message: str, arguments: tuple[str, ...] = ()):
        super().__init__(message)
        self.arguments = arguments


def _check_held_out(count: int, images: int) -> None:
    """Raise DataError unless 0 < `count` < `images`, the number of training images."""
    if not 0 < count < images:
        message = f"Argument `count` must be positive and less than the {images} training images. Received: {count}"
        raise DataError(message, arguments=("held_out",))


@dataclasses.dataclass(frozen=True)
class ImageData:
    """Decoded training and test images.

    Attributes:
        name: name of the data set.
        train_images, test_images: uint8, `(n, rows, cols, channels)`.
        train_labels, test_labels: int32, `(n,)`, in [0, classes).
        class_names: one string per class.
        origin: description of the source of the data.
    """

    name: str
    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int32]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int32]
    class_names: tuple[str, ...]
    origin: str

    def __post_init__(self) -> None:
        for split in ("train", "test"):
            images, labels = getattr(self, f"{split}_images"), getattr(self, f"{split}_labels")
            if images.dtype != np.uint8 or images.ndim != 4 or not len(images):
                raise DataError(
                    f"{self.name}: {split} images must be a non-empty uint8 array (n, rows, cols, channels). "
                    f"Received: {images.dtype} of shape {images.shape}"
                )
            if labels.min() < 0 or labels.max() >= self.classes:
                raise DataError(
                    f"{self.name}: {split} labels must be in 0..{self.classes - 1}. "
                    f"Received: {labels.min()}..{labels.max()}"
                )

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of an image, `(rows, cols, channels)`."""
        return self.train_images.shape[1:]

    def first(self, train: int | None = None, test: int | None = None) -> "ImageData":
        """Return the data set with the first `train` and `test` images only. None keeps all images."""
        parts = self.train_images[:train], self.train_labels[:train], self.test_images[:test], self.test_labels[:test]
        return ImageData(self.name, *parts, self.class_names, self.origin)

    def hold_out(self, count: int) -> "ImageData":
        """Return the data set with the last `count` training images as its test images, to choose settings.

        Raises:
            DataError: `count` is less than 1, or no training image would be left.
        """
        _check_held_out(count, len(self.train_images))
        images, labels = self.train_images, self.train_labels
        parts = images[:-count], labels[:-count], images[-count:], labels[-count:]
        origin = f"{self.origin}; tested on {count} images held out of the training images"
        return ImageData(self.name, *parts, self.class_names, origin)

    def digest(self) -> str:
        """Return a checksum of all images and labels in their order, 8 hexadecimal digits."""
        crc = 0
        for array in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
        return f"{crc:08x}"
