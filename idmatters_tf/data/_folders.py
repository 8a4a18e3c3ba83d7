"""Trees of labeled images with one folder for each class. Listing does not import TensorFlow."""

import dataclasses
import hashlib
import os
import pathlib
import zlib
from collections.abc import Iterable

from idmatters_tf._arguments import as_utf8
from idmatters_tf.data.images import DataError, Path

SUFFIXES = (".jpeg", ".jpg", ".jpe", ".jfif", ".png")
# Formats of images that are not read.
OTHER_SUFFIXES = (
    *(".apng", ".avif", ".bmp", ".dib", ".dng", ".exr", ".gif", ".hdr", ".heic", ".heif", ".hif", ".ico", ".j2k"),
    *(".jls", ".jp2", ".jpf", ".jpm", ".jpx", ".jxl", ".jxr", ".pbm", ".pcx", ".pgm", ".pnm", ".ppm", ".psd", ".qoi"),
    *(".raw", ".svg", ".tga", ".tif", ".tiff", ".webp"),
)


@dataclasses.dataclass(frozen=True)
class ImageFiles:
    """Labeled images in files.

    Attributes:
        root: folder of the images.
        names: paths of the images relative to `root`.
        labels: indices into `class_names`.
        class_names: sorted names of the class folders.
        ignored: other files and nested folders, relative to `root`.
    """

    root: pathlib.Path
    names: list[str]
    labels: list[int]
    class_names: tuple[str, ...]
    ignored: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def without(self, broken: Iterable[int]) -> "ImageFiles":
        """Return the files without the images at the given indices."""
        kept = sorted(set(range(len(self))).difference(broken))
        names, labels = ([values[index] for index in kept] for values in (self.names, self.labels))
        return dataclasses.replace(self, names=names, labels=labels)

    def shuffle(self) -> list[int]:
        """Return all indices, sorted by a checksum of the names of the images."""
        # File names may be any bytes.
        sums = [hashlib.sha256(name.encode(errors="surrogateescape")).digest() for name in self.names]
        return sorted(range(len(self)), key=sums.__getitem__)

    def describe(self, index: int) -> str:
        """Return the path of an image."""
        return str(self.root / self.names[index])

    def digest(self, crc: int = 0) -> int:
        """Return a checksum of names and labels, continued from `crc`. The pixels are not read."""
        for name, label in zip(self.names, self.labels, strict=True):
            crc = zlib.crc32(f"{name}\0{label}\n".encode(errors="surrogateescape"), crc)
        return crc


def list_classes(folder: Path) -> ImageFiles:
    """List the images of `folder/CLASS/*.JPEG`, sorted by class and name.

    Args:
        folder: folder with one folder for each class. Image names end with one of `SUFFIXES`, upper or lower case.

    Raises:
        DataError: there are no class folders, the name of one is not UTF-8, a class has no images or images of other
            formats, or a folder cannot be read.
    """
    folder = pathlib.Path(folder)
    inside = [entry for entry in _entries(folder) if not entry.name.startswith(".")]
    classes = sorted(entry.name for entry in inside if entry.is_dir())
    if not classes:
        raise DataError(f"{folder} contains no class folders. Expected {folder}/CLASS/*.JPEG, a folder for each class.")
    names: list[str] = []
    labels: list[int] = []
    ignored = sorted(entry.name for entry in inside if not entry.is_dir())
    for label, name in enumerate(classes):
        # Models and config.json contain the names of the classes.
        if as_utf8(name) != name:
            raise DataError(f"the name of class folder {as_utf8(str(folder / name))} is not UTF-8. Rename the folder.")
        images, others = _images_and_others(folder / name)
        unread = [other for other in others if other.lower().endswith(OTHER_SUFFIXES)]
        if unread:
            raise DataError(
                f"class folder {folder / name} contains images that are not JPEG or PNG files ({len(unread)}, such as "
                f"{unread[0]}). Convert them to PNG, or move them to another folder."
            )
        ignored += [f"{name}/{other}" for other in others]
        if not images:
            inner = [
                other for other in others if (folder / name / other).is_dir() and holds_images(folder / name / other)
            ]
            where = f" itself, but its folder {inner[0]}/ does. Move them up" if inner else ". Add images"
            raise DataError(
                f"class folder {folder / name} contains no images ({', '.join(SUFFIXES)}){where}, or remove the folder."
            )
        names += [f"{name}/{image}" for image in images]
        labels += [label] * len(images)
    return ImageFiles(folder, names, labels, tuple(classes), tuple(ignored))


def holds_images(folder: Path) -> bool:
    """Return True if a folder contains images directly."""
    return any(_is_image(entry) for entry in _entries(folder))


def holds_classes(folder: Path) -> bool:
    """Return True if a folder contains folders of images directly."""
    return any(entry.is_dir() and holds_images(entry.path) for entry in _entries(folder))


def _is_image(entry):
    # macOS writes a hidden file ._NAME beside each NAME on other file systems.
    return entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith(".") and not entry.is_dir()


def _images_and_others(folder):
    """Return the sorted names of the images in a folder, and of all other entries that are not hidden."""
    entries = _entries(folder)
    others = [entry.name for entry in entries if not _is_image(entry) and not entry.name.startswith(".")]
    return sorted(entry.name for entry in entries if _is_image(entry)), sorted(others)


def _entries(folder):
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}. Check the path and its permissions.") from error
