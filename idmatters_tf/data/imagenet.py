"""ImageNet (ILSVRC2012), and any other images in the same tree of folders.

The tree is `train/CLASS/*.JPEG` with `val/CLASS/*.JPEG`, or `CLASS/*.JPEG` only, without validation images. Listing it
does not require TensorFlow.
"""

import dataclasses
import pathlib
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import as_utf8, check_choice, distinguish
from idmatters_tf.data import _folders
from idmatters_tf.data._folders import ImageFiles
from idmatters_tf.data.images import DataError, Path, _check_held_out


@dataclasses.dataclass(frozen=True)
class StreamedImageData:
    """Training and test images that are read during training.

    Attributes:
        name: name of the data set.
        train, test: `ImageFiles`.
        origin: description of the source of the data.
        size: side in pixels of the square to which images are resized.
        skipped: number of broken images that were left out.
        ignored: other files in the folders, see `ImageFiles`.
    """

    name: str
    train: ImageFiles
    test: ImageFiles
    origin: str
    size: int
    skipped: int = 0
    ignored: tuple[str, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the class folders."""
        return self.train.class_names

    @property
    def classes(self) -> int:
        """Number of class folders."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of a resized image, `(rows, cols, channels)`."""
        return (self.size, self.size, 3)

    def digest(self) -> str:
        """Return a checksum of all names and labels in their order, 8 hexadecimal digits. No pixels are read."""
        return f"{self.test.digest(self.train.digest()):08x}"

    def without(self, train: Collection[int], test: Collection[int]) -> "StreamedImageData":
        """Return the data set without broken images, by their indices. Raises DataError if no images remain."""
        for split, images, broken in (("train", self.train, train), ("test", self.test, test)):
            if len(broken) == len(images):
                raise DataError(f"none of the {len(images):,} {split} images can be decoded.")
        kept = {"train": self.train.without(train), "test": self.test.without(test)}
        return dataclasses.replace(self, **kept, skipped=len(train) + len(test))

    def first(self, train: int | None = None, test: int | None = None) -> "StreamedImageData":
        """Return the data set with `train` and `test` images only. None keeps all images.

        The images with the smallest checksums of their names are kept, because files are sorted by class.
        """
        first, last = (
            images if count is None else images.without(images.shuffle()[count:])
            for images, count in ((self.train, train), (self.test, test))
        )
        return dataclasses.replace(self, train=first, test=last)

    def hold_out(self, count: int) -> "StreamedImageData":
        """Return the data set with the last `count` training images, in the order of `first`, as its test images.

        Raises:
            DataError: `count` is less than 1, or no training image would be left.
        """
        _check_held_out(count, len(self.train))
        indices = self.train.shuffle()
        return dataclasses.replace(
            self,
            train=self.train.without(indices[-count:]),
            test=self.train.without(indices[:-count]),
            origin=f"{self.origin}; tested on {count} images held out of the training images",
        )


def load_image(path: Path, size: int, augmentation: str = "paper") -> NDArray[np.uint8]:
    """Load an image as evaluations of the training programs do, for predictions with an exported model.

    The image is resized by bilinear interpolation without antialiasing. Other methods increase the error of networks
    that were trained on images resized in this way.

    Args:
        path: JPEG or PNG file.
        size: rows and columns of the result, those of the model's input.
        augmentation: `--augment` of the training run. "standard" takes the central square of 224/256 of the shorter
            side, "paper" and "none" the whole image.

    Returns:
        Pixels, `(size, size, 3)`. Evaluations standardize the resized image before it is rounded to whole numbers.

    Raises:
        tf.errors.OpError: the file cannot be read as a JPEG or PNG image.
    """
    import tensorflow as tf

    from idmatters_tf.data import _decoding

    check_choice("augmentation", augmentation, _decoding.AUGMENTATIONS)
    window = _decoding.evaluation_window(augmentation)
    image = _decoding.decode_and_resize(tf.io.read_file(str(path)), size, window)
    return tf.cast(tf.round(image), tf.uint8).numpy()


def load(data_dir: Path, size: int = 224, train_only: bool = False) -> StreamedImageData:
    """Find and list the images without reading them.

    Args:
        data_dir: folder of the data.
        size: side in pixels of the square to which images are resized.
        train_only: True uses the training images as test images as well, for `StreamedImageData.hold_out`.

    Raises:
        DataError: no images are found, there are no validation images, or the splits have different classes.
    """
    root = pathlib.Path(data_dir).expanduser()
    folder = root / "train" if (root / "train").is_dir() else root
    if folder == root and not (root.is_dir() and _folders.holds_classes(root)):
        missing = "" if root.exists() else ", which does not exist"
        remedy = "Pass the folder that holds one of these as `data_dir`."
        if any(root.glob("*.tar")):
            remedy = "Unpack the tar files as described in docs/howto/imagenet.md."
        raise DataError(
            f"no images were found in {root}{missing}: neither a tree train/CLASS/*.JPEG nor class folders. {remedy}",
            arguments=("data_dir",),
        )
    train = _folders.list_classes(folder)
    test = train if train_only else _list_validation(train, root / "val")
    ignored = train.ignored + (test.ignored if test is not train else ())
    return StreamedImageData(as_utf8(root.resolve().name), train, test, f"image files, {root}", size, ignored=ignored)


def _list_validation(train, folder):
    if not folder.is_dir():
        raise DataError(
            f"there are no validation images: {folder} is not a folder. Add it, or hold out some of the training "
            f"images.",
            arguments=("held_out",),
        )
    if _folders.holds_images(folder):
        raise DataError(f"{folder} contains images outside of class folders. Sort them into {folder}/CLASS/.")
    test = _folders.list_classes(folder)
    differing = sorted(set(train.class_names) ^ set(test.class_names))
    if differing:
        shown = ", ".join(distinguish(differing)[:5]) + (", ..." if len(differing) > 5 else "")
        raise DataError(
            f"training and validation images must have the same class folders. {len(differing)} are in only one of "
            f"{train.root} and {folder}: {shown}"
        )
    return test
