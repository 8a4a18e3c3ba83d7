"""ImageNet (ILSVRC2012), and any other images in the same tree of folders.

The first of these that is found is taken:

- a tree `train/CLASS/*.JPEG` with `val/CLASS/*.JPEG`, or with `val/*.JPEG` and a file of classes;
- `imagenet2012` as TensorFlow Datasets has prepared it;
- the two original files `ILSVRC2012_img_train.tar` and `ILSVRC2012_img_val.tar`, which TensorFlow Datasets then
  prepares.

Finding them needs neither TensorFlow nor the network; nothing is ever downloaded, for ImageNet asks for a registration.
"""

import dataclasses
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, cast

from idmatters_tf.data import folders
from idmatters_tf.data.folders import ImageFiles
from idmatters_tf.data.images import DataError, DataNotFound
from idmatters_tf.data.sources import Location, Path, data_root, explained, is_prepared

if TYPE_CHECKING:
    from idmatters_tf.data.records import Records

TFDS_NAME = "imagenet2012"
TARS = ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar")


@dataclasses.dataclass(frozen=True)
class StreamedImageData:
    """Training and test images that are read while training.

    Attributes:
        name: the data set's name.
        train, test: `folders.ImageFiles` or `records.Records`.
        origin: where the data came from, in words.
        size: of the square that images are brought to, in pixels.
        skipped: how many broken images were left out.
        outputs: of the network, where that is more than there are classes.
    """

    name: str
    train: "ImageFiles | Records"
    test: "ImageFiles | Records"
    origin: str
    size: int
    skipped: int = 0
    outputs: int | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.train.class_names

    @property
    def classes(self) -> int:
        """The number of classes that the network tells apart."""
        return self.outputs or len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """`(rows, cols, channels)`."""
        return (self.size, self.size, 3)

    def digest(self) -> str:
        """A checksum of all names and labels in their order (8 hexadecimal digits); the pixels are not read."""
        return f"{self.test.digest(self.train.digest()):08x}"

    def without_broken(self, find: "Callable[[ImageFiles | Records], Collection[int]]") -> "StreamedImageData":
        """The same without the images that cannot be decoded; `find(images)` returns their places.

        Raises:
            DataError: none can be decoded.
        """
        in_train, in_test = find(self.train), find(self.test)
        for found, images, words in ((in_train, self.train, "training"), (in_test, self.test, "validation")):
            if len(found) == len(images):
                raise DataError(f"none of the {len(images):,} {words} images can be decoded: nothing would be left.")
        return dataclasses.replace(
            self,
            train=self.train.without(in_train),
            test=self.test.without(in_test),
            skipped=len(in_train) + len(in_test),
        )


def locate(data_dir: Path | None = None) -> Location | None:
    """Looks for the data without reading them. Returns a `Location` of kind "tree", "tfds" or "tars", or None.

    Args:
        data_dir: a folder; None: that of TensorFlow Datasets (`$TFDS_DATA_DIR`, else `~/tensorflow_datasets`).
    """
    root = data_root(data_dir)
    if (root / "train").is_dir():
        return Location("tree", root)
    if is_prepared(TFDS_NAME, root):
        return Location("tfds", root)
    for folder in (root, root / "downloads" / "manual"):
        if all((folder / name).is_file() for name in TARS):
            return Location("tars", folder)
    return None


def load(
    data_dir: Path | None = None, val: str = "val", val_labels: Path | None = None, size: int = 224
) -> StreamedImageData:
    """Finds the images and lists them; none is read.

    Args:
        data_dir: see `locate`.
        val: of a tree, the folder with the validation images, relative to `data_dir`.
        val_labels: a file with the classes of validation images that are not in class folders, see
            `folders.list_flat`.
        size: of the square that images are brought to, in pixels.

    Returns:
        A `StreamedImageData`.

    Raises:
        DataError: nothing found, no validation images, or classes that differ between the two.
    """
    root = data_root(data_dir)
    location = locate(data_dir)
    if location is None:
        raise DataNotFound(
            f"no images were found in {root}: neither a tree train/CLASS/*.JPEG, nor {TFDS_NAME} prepared by "
            f"TensorFlow Datasets, nor {TARS[0]} with {TARS[1]}. Pass the folder that holds one of these as "
            f"`data_dir`.",
            arguments=("data_dir",),
        )
    if location.kind == "tree":
        train, test = _tree(root, val, val_labels)
        return StreamedImageData(root.resolve().name, train, test, f"image files, {root}", size)
    return _prepared(root, location, size)


def _tree(root, val, val_labels):
    train = folders.list_classes(root / "train")
    folder = root / val
    if not folder.is_dir():
        raise DataError(
            f"there are no validation images: {folder} is not a folder. Expected {folder}/CLASS/*.JPEG. Pass another "
            f"folder as `val`; val='train' evaluates on the training images, to try things out.",
            arguments=("val",),
        )
    if folders.holds_images(folder):
        return train, folders.list_flat(folder, train.class_names, val_labels)
    if val_labels is not None:
        raise DataError(
            f"the validation images in {folder} are in class folders, which say their classes: {val_labels} would be "
            f"ignored. Leave `val_labels` out, or move the images out of the class folders.",
            arguments=("val_labels",),
        )
    test = folders.list_classes(folder)
    folders.check_same_classes(train, test)
    return train, test


def _prepared(root, location, size):
    import tensorflow_datasets as tfds

    from idmatters_tf.data.records import Records

    with explained(TFDS_NAME, root):
        builder = cast(Any, tfds.builder(TFDS_NAME, data_dir=str(root)))
        if location.kind == "tars":
            config = tfds.download.DownloadConfig(manual_dir=str(location.path))
            builder.download_and_prepare(download_config=config)
    if builder.info.file_format is not tfds.core.FileFormat.TFRECORD:
        raise DataError(
            f"{builder.data_dir} is prepared in {builder.info.file_format.value} files, but only TFRecord files are "
            f"read. Prepare it again without another file format."
        )
    names = builder.info.features["label"].names
    train, test = (Records(builder.info.splits[split].filepaths, names) for split in ("train", "validation"))
    origin = f"TensorFlow Datasets {builder.info.full_name}, {builder.data_dir}"
    return StreamedImageData(TFDS_NAME, train, test, origin, size)
