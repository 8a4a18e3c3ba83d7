"""Trees of labeled images with one folder for each class. Listing does not import TensorFlow."""

import dataclasses
import hashlib
import os
import pathlib
import zlib
from collections.abc import Iterable, Sequence

from idmatters_tf._arguments import as_utf8
from idmatters_tf.data._sources import Path
from idmatters_tf.data.images import DataError

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".gif")
# Usual names of the file with the labels of a flat folder of validation images.
LABEL_FILES = ("val_labels.txt", "LOC_val_solution.csv", "imagenet_2012_validation_synset_labels.txt")


@dataclasses.dataclass(frozen=True)
class ImageFiles:
    """Labeled image files.

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
        names = [self.names[index] for index in kept]
        return dataclasses.replace(self, names=names, labels=[self.labels[index] for index in kept])

    def hold_out(self, fraction: float) -> "tuple[ImageFiles, ImageFiles]":
        """Split the images of each class into two parts, in the order of a checksum of their names.

        Args:
            fraction: fraction of each class in the second part, at least one image and not all of them.

        Raises:
            DataError: a class has only one image.
        """
        members: dict[int, list[int]] = {}
        for index in self.shuffle():
            members.setdefault(self.labels[index], []).append(index)
        held_out: set[int] = set()
        for label, indices in members.items():
            if len(indices) < 2:
                raise DataError(f"class {self.class_names[label]} has only one image, so none can be held out.")
            held_out |= set(indices[: min(max(1, round(fraction * len(indices))), len(indices) - 1)])
        return self.without(held_out), self.without(set(range(len(self))) - held_out)

    def shuffle(self) -> list[int]:
        """Return all indices, sorted by a checksum of the names of the images."""
        return sorted(range(len(self)), key=lambda index: _checksum(self.names[index]))

    def describe(self, index: int) -> str:
        """Return the path of an image."""
        return str(self.root / self.names[index])

    def digest(self, crc: int = 0) -> int:
        """Return a checksum of names and labels, continued from `crc`. The pixels are not read."""
        for name, label in zip(self.names, self.labels, strict=True):
            # File names may be any bytes.
            crc = zlib.crc32(f"{name}\0{label}\n".encode(errors="surrogateescape"), crc)
        return crc


def list_classes(folder: Path) -> ImageFiles:
    """List the images of `folder/CLASS/*.JPEG`, sorted by class and name.

    Args:
        folder: folder with one folder for each class. Image names end with one of `SUFFIXES`, upper or lower case.

    Raises:
        DataError: there are no class folders, the name of one is not UTF-8, a class has no images, or a folder cannot
            be read.
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
        ignored += [f"{name}/{other}" for other in others]
        if not images:
            raise DataError(
                f"class folder {folder / name} contains no images ({', '.join(SUFFIXES)}). Add images or remove the "
                f"folder."
            )
        names += [f"{name}/{image}" for image in images]
        labels += [label] * len(images)
    return ImageFiles(folder, names, labels, tuple(classes), tuple(ignored))


def list_flat(folder: Path, class_names: Sequence[str]) -> ImageFiles:
    """List the images of `folder/*.JPEG` with classes from a text file, the layout of ILSVRC2012's validation images.

    The file is one of `LABEL_FILES` in the folder or its parent. It contains lines "NAME CLASS ..." (separated by
    spaces, tabs or commas; a heading is skipped), or one class in each line, in the order of the sorted names.

    Args:
        folder: folder of the images.
        class_names: names of the training classes.

    Raises:
        DataError: there are no labels, an image has no label, or a class is not a training class.
    """
    folder = pathlib.Path(folder)
    images, others = _images_and_others(folder)
    candidates = [above / name for above in (folder, folder.parent) for name in LABEL_FILES]
    labels_file = next((path for path in candidates if path.is_file()), None)
    if labels_file is None:
        raise DataError(
            f"{folder} contains images but no class folders, and there is no file with their classes. Sort them into "
            f"{folder}/CLASS/, or write lines 'NAME CLASS' to {folder.parent / LABEL_FILES[0]}.",
        )
    classes = _read_labels(labels_file, images)
    indices = {name: index for index, name in enumerate(class_names)}
    for image, name in zip(images, classes, strict=True):
        if name not in indices:
            raise DataError(f"{labels_file}: {image} is of class {name!r}, which has no training folder.")
    labels = [indices[name] for name in classes]
    ignored = tuple(other for other in others if other != labels_file.name)
    return ImageFiles(folder, images, labels, tuple(class_names), ignored)


def _read_labels(path, images):
    try:
        lines = [line.replace(",", " ").split() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the classes of the validation images cannot be read from {path}: {error}") from error
    lines = [words for words in lines if words]
    if all(len(words) == 1 for words in lines):
        if len(lines) != len(images):
            raise DataError(f"{path} has {len(lines)} lines of one class each for {len(images)} images.")
        return [words[0] for words in lines]
    by_name = {words[0]: words[1] for words in lines if len(words) > 1}
    # Names without a suffix, as in LOC_val_solution.csv, or with another one.
    by_stem = {pathlib.Path(name).stem: label for name, label in by_name.items()}
    labels = [by_name.get(image) or by_stem.get(pathlib.Path(image).stem, "") for image in images]
    missing = [image for image, label in zip(images, labels, strict=True) if not label]
    if missing:
        raise DataError(f"{path} has no class for {missing[0]} ({len(missing)} of {len(images)} images).")
    return labels


def check_same_classes(train: ImageFiles, test: ImageFiles) -> None:
    """Raise DataError unless both splits have the same class folders."""
    differing = sorted(set(train.class_names) ^ set(test.class_names))
    if differing:
        shown = ", ".join(differing[:5]) + (", ..." if len(differing) > 5 else "")
        raise DataError(
            f"training and validation images must have the same class folders. {len(differing)} are in only one of "
            f"{train.root} and {test.root}: {shown}"
        )


def holds_images(folder: Path) -> bool:
    """Return True if a folder contains images directly."""
    return any(_is_image(entry) for entry in _entries(folder))


def holds_classes(folder: Path) -> bool:
    """Return True if a folder contains folders of images directly."""
    return any(entry.is_dir() and holds_images(entry.path) for entry in _entries(folder))


def _checksum(name):
    return hashlib.sha256(name.encode(errors="surrogateescape")).digest()


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
