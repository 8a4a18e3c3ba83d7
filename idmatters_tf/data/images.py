"""A labelled set of images in memory."""

import dataclasses
import zlib

import numpy as np
from numpy.typing import NDArray


class DataError(ValueError):
    """Data that is missing or is not what it should be; the message says what, where, and what to do.

    A program with options of its own can tell from `arguments` which of them to name.

    Args:
        message: one sentence or two.
        arguments: the arguments of the function that was called of which another value may help, e.g. ("data_dir",).
    """

    def __init__(self, message: str, arguments: tuple[str, ...] = ()):
        super().__init__(message)
        self.arguments = arguments


class DataNotFound(DataError):
    """No files of the data set in the folder that was searched."""


def check_held_out(count: int, images: int) -> None:
    """Raise ValueError unless some of the training images, and not all, are held out."""
    if not 0 < count < images:
        raise ValueError(
            f"Argument `count` must be positive and less than the {images} training images. Received: count={count}"
        )


@dataclasses.dataclass(frozen=True)
class ImageData:
    """Training and test images, decoded once.

    Attributes:
        name: the data set's name.
        train_images, test_images: uint8, `(n, rows, cols, channels)`.
        train_labels, test_labels: int32, `(n,)`, in [0, classes).
        class_names: one string per class.
        origin: where the data came from, in words.
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
            if labels.shape != images.shape[:1]:
                raise DataError(f"{self.name}: {len(images)} {split} images, but labels of shape {labels.shape}")
            if labels.min() < 0 or labels.max() >= self.classes:
                raise DataError(
                    f"{self.name}: {split} labels must lie in 0..{self.classes - 1}. "
                    f"Received: {labels.min()}..{labels.max()}"
                )

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """`(rows, cols, channels)`."""
        return self.train_images.shape[1:]

    def first(self, train: int | None = None, test: int | None = None) -> "ImageData":
        """The same data set cut down to the first `train` and `test` images; None keeps all."""
        return dataclasses.replace(
            self,
            train_images=self.train_images[:train],
            train_labels=self.train_labels[:train],
            test_images=self.test_images[:test],
            test_labels=self.test_labels[:test],
        )

    def hold_out(self, count: int) -> "ImageData":
        """The last `count` training images in place of the test images, which choices must not be made on.

        Raises:
            ValueError: where no training image would be left, or none held out.
        """
        check_held_out(count, len(self.train_images))
        return dataclasses.replace(
            self,
            train_images=self.train_images[:-count],
            train_labels=self.train_labels[:-count],
            test_images=self.train_images[-count:],
            test_labels=self.train_labels[-count:],
            origin=f"{self.origin}; tested on {count} images held out of the training images",
        )

    def digest(self) -> str:
        """A checksum of all images and labels in their order (8 hexadecimal digits), to tell data sets apart."""
        crc = 0
        for array in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
        return f"{crc:08x}"
