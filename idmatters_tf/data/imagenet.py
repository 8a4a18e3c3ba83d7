"""ImageNet (ILSVRC2012), and any other images in the same tree of folders.

The first of these that is found is taken:

- a tree `train/CLASS/*.JPEG` with `val/CLASS/*.JPEG`, or with `val/*.JPEG` and a file of classes;
- class folders `CLASS/*.JPEG` alone, some of whose images are then held out;
- `imagenet2012` as TensorFlow Datasets has prepared it;
- the two original files `ILSVRC2012_img_train.tar` and `ILSVRC2012_img_val.tar`, which TensorFlow Datasets then
  prepares.

Finding them needs neither TensorFlow nor the network; nothing is ever downloaded, for ImageNet asks for a registration.
"""

import dataclasses
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, cast

from idmatters_tf.data import _folders
from idmatters_tf.data._folders import ImageFiles
from idmatters_tf.data._sources import Location, Path, data_root, explained, prepared_in
from idmatters_tf.data.images import DataError, DataNotFound, check_held_out

if TYPE_CHECKING:
    from idmatters_tf.data._records import Records

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
        ignored: what else lies in the folders, see `folders.ImageFiles`.
        outputs: of the network, where that is more than there are classes.
    """

    name: str
    train: "ImageFiles | Records"
    test: "ImageFiles | Records"
    origin: str
    size: int
    skipped: int = 0
    ignored: tuple[str, ...] = ()
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

    def first(self, train: int | None = None, test: int | None = None) -> "StreamedImageData":
        """Return the data set cut down to `train` and `test` images; None keeps all.

        Of files, which are sorted by class, those with the smallest checksums of their names are kept.
        """
        kept = {}
        for split, count in (("train", train), ("test", test)):
            images = getattr(self, split)
            if count is not None and count < len(images):
                kept[split] = images.without(images.mixed()[count:])
        return dataclasses.replace(self, **kept)

    def hold_out(self, count: int) -> "StreamedImageData":
        """Return the data set with the last `count` training images, in the order of `first`, as its test images.

        Raises:
            ValueError: where no training image would be left, or none held out.
        """
        check_held_out(count, len(self.train))
        places = self.train.mixed()
        return dataclasses.replace(
            self,
            train=self.train.without(places[-count:]),
            test=self.train.without(places[:-count]),
            origin=f"{self.origin}; tested on {count} images held out of the training images",
        )


def locate(data_dir: Path | None = None) -> Location | None:
    """Looks for the data without reading them.

    Args:
        data_dir: a folder; None: that of TensorFlow Datasets (`$TFDS_DATA_DIR`, else `~/tensorflow_datasets`).

    Returns:
        A `Location` of kind "tree", "classes" (class folders without `train/`), "tfds" or "tars", or None.
    """
    root = data_root(data_dir)
    if (root / "train").is_dir():
        return Location("tree", root)
    prepared = prepared_in(TFDS_NAME, root)
    if prepared is not None:
        return Location("tfds", prepared)
    for folder in (root, root / "downloads" / "manual"):
        if all((folder / name).is_file() for name in TARS):
            return Location("tars", folder)
    if root.is_dir() and _folders.holds_classes(root):
        return Location("classes", root)
    return None


def load(
    data_dir: Path | None = None,
    val: str = "val",
    val_labels: Path | None = None,
    size: int = 224,
    val_fraction: float | None = None,
    train_only: bool = False,
) -> StreamedImageData:
    """Finds the images and lists them; none is read.

    Args:
        data_dir: see `locate`.
        val: of a tree, the folder with the validation images, relative to `data_dir`.
        val_labels: a file with the classes of validation images that are not in class folders, see
            `folders.list_flat`.
        size: of the square that images are brought to, in pixels.
        val_fraction: the share of each class's training images that is held out for validation, where there is no
            folder of validation images, or where `val` is "train": to choose settings without the validation images.
        train_only: take the training images as test images, too, for `StreamedImageData.hold_out`.

    Returns:
        A `StreamedImageData`.

    Raises:
        DataError: nothing found, no validation images, or classes that differ between the two.
    """
    root = data_root(data_dir)
    location = locate(data_dir)
    if location is None:
        what = ", which does not exist" if not root.exists() else "" if root.is_dir() else ", which is not a folder"
        raise DataNotFound(
            f"no images were found in {root}{what}: neither a tree train/CLASS/*.JPEG, nor {TFDS_NAME} prepared by "
            f"TensorFlow Datasets, nor {TARS[0]} with {TARS[1]}. Pass the folder that holds one of these as "
            f"`data_dir`.",
            arguments=("data_dir",),
        )
    if location.kind in ("tree", "classes"):
        if train_only:
            train = test = _folders.list_classes(root / "train" if location.kind == "tree" else root)
        else:
            train, test = _tree(location, val, val_labels, val_fraction)
        ignored = train.ignored + (test.ignored if test.root != train.root else ())
        return StreamedImageData(root.resolve().name, train, test, f"image files, {root}", size, ignored=ignored)
    if val_fraction is not None:
        raise DataError(
            f"{TFDS_NAME} in {root} has validation images of its own: leave `val_fraction` out.",
            arguments=("val_fraction",),
        )
    return _prepared(location.path if location.kind == "tfds" else root, location, size)


def _tree(location, val, val_labels, val_fraction):
    root, folder = location.path, location.path / val
    if location.kind == "classes" and val_fraction is None:
        raise DataError(
            f"{root} holds class folders, but no train/ and {val}/ that hold them: pass `val_fraction`, such as 0.1, "
            f"to hold out that share of each class for validation, or sort the images into {root}/train/CLASS/ and "
            f"{folder}/CLASS/.",
            arguments=("val_fraction",),
        )
    if val_fraction is not None:
        if not 0 < val_fraction < 1:
            raise DataError(
                f"Argument `val_fraction` must lie between 0 and 1. Received: {val_fraction}",
                arguments=("val_fraction",),
            )
        if location.kind == "tree" and folder.is_dir() and val != "train":
            raise DataError(
                f"there are validation images in {folder}, which `val_fraction` would leave unused. Leave it out, or "
                f"hold out training images all the same with val='train'.",
                arguments=("val_fraction", "val"),
            )
        return _folders.list_classes(root / "train" if location.kind == "tree" else root).hold_out(val_fraction)
    train = _folders.list_classes(root / "train")
    if not folder.is_dir():
        raise DataError(
            f"there are no validation images: {folder} is not a folder. Expected {folder}/CLASS/*.JPEG. Pass another "
            f"folder as `val`, or `val_fraction`, such as 0.1, to hold out that share of each class; val='train' "
            f"evaluates on the training images, to try things out.",
            arguments=("val", "val_fraction"),
        )
    if _folders.holds_images(folder):
        return train, _folders.list_flat(folder, train.class_names, val_labels)
    if val_labels is not None:
        raise DataError(
            f"the validation images in {folder} are in class folders, which say their classes: {val_labels} would be "
            f"ignored. Leave `val_labels` out, or move the images out of the class folders.",
            arguments=("val_labels",),
        )
    test = _folders.list_classes(folder)
    _folders.check_same_classes(train, test)
    return train, test


def _prepared(root, location, size):
    import tensorflow_datasets as tfds

    from idmatters_tf.data._records import Records

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
