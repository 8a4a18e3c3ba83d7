"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009).

The first of these sources that is found is used:

- the official binary version: `cifar-10-binary.tar.gz` / `cifar-100-binary.tar.gz`, or the unpacked folder
  `cifar-10-batches-bin` / `cifar-100-binary`;
- the data set prepared by TensorFlow Datasets (`cifar10` / `cifar100`), which also downloads it.

Finding and checking files requires neither TensorFlow nor the network.
"""

import dataclasses
import tarfile
import zlib
from typing import Any, cast

import numpy as np

from idmatters_tf.data import _sources
from idmatters_tf.data._sources import Location, Path
from idmatters_tf.data.images import DataError, ImageData


@dataclasses.dataclass(frozen=True)
class _Variant:
    folder: str
    archive: str
    train_files: tuple[str, ...]
    train_records: int
    test_file: str
    test_records: int
    label_bytes: int
    class_names: tuple[str, ...]

    @property
    def record_bytes(self) -> int:
        return self.label_bytes + 32 * 32 * 3


# From fine_label_names.txt.
_FINE_LABELS = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""

# TensorFlow Datasets downloads from here.
SERVER = "https://www.cs.toronto.edu/~kriz/"

VARIANTS = {
    "cifar10": _Variant(
        folder="cifar-10-batches-bin",
        archive="cifar-10-binary.tar.gz",
        train_files=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        train_records=10_000,
        test_file="test_batch.bin",
        test_records=10_000,
        label_bytes=1,
        class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    # Two label bytes before the pixels: the coarse label, then the fine label (0..99).
    "cifar100": _Variant(
        folder="cifar-100-binary",
        archive="cifar-100-binary.tar.gz",
        train_files=("train.bin",),
        train_records=50_000,
        test_file="test.bin",
        test_records=10_000,
        label_bytes=2,
        class_names=tuple(_FINE_LABELS.split()),
    ),
}


def locate(name: str, data_dir: Path | None = None) -> Location | None:
    """Find the files of a data set without reading them.

    Args:
        name: "cifar10" or "cifar100".
        data_dir: the archive, the folder of the data set, or a folder that contains one of these itself or in a folder
            directly below. None: the folder of TensorFlow Datasets (`$TFDS_DATA_DIR`, or `~/tensorflow_datasets`).

    Returns:
        A `Location` of kind "folder", "archive" or "tfds", or None if nothing is found.
    """
    variant = VARIANTS[name]
    root = _sources.data_root(data_dir)
    if root.is_file():
        return Location("archive", root)
    for folder in _sources.folders(root):
        for candidate in (folder, folder / variant.folder):
            if candidate.name == variant.folder and (candidate / variant.test_file).is_file():
                return Location("folder", candidate)
        if (folder / variant.archive).is_file():
            return Location("archive", folder / variant.archive)
        if _sources.is_prepared(name, folder):
            return Location("tfds", folder)
    return None


def load(name: str, data_dir: Path | None = None, download: bool = False) -> ImageData:
    """Load CIFAR-10 or CIFAR-100 into memory.

    Args:
        name: "cifar10" or "cifar100".
        data_dir: see `locate`.
        download: True downloads missing data through TensorFlow Datasets into `data_dir`.

    Returns:
        An `ImageData` with 50,000 training and 10,000 test images of shape (32, 32, 3).

    Raises:
        DataError: no files were found or downloaded, or files have the wrong length or invalid labels.
    """
    if name not in VARIANTS:
        raise DataError(f"Argument `name` must be one of {', '.join(map(repr, VARIANTS))}. Received: name={name!r}")
    location = locate(name, data_dir)
    if location is not None and location.kind != "tfds":
        return _load_binary(name, location)
    if location is None:
        variant = VARIANTS[name]
        hint = (
            f" The Python version, with pickles, is not supported: download {variant.archive}. "
            f"`idmatters_tf.data.shapes` (dataset shapes) needs no files."
        )
        looked_for = f"{variant.folder}/, {variant.archive}"
        _sources.require_download(name, data_dir, looked_for, SERVER if download else None, hint)
    return _sources.load_tfds(name, location, data_dir)


def _load_binary(name, location):
    variant = VARIANTS[name]
    records = dict.fromkeys(variant.train_files, variant.train_records) | {variant.test_file: variant.test_records}
    contents = _read_files(location, variant, records)
    parts = {file: _decode(contents[file], variant, count, location.path / file) for file, count in records.items()}
    train = [parts[file] for file in variant.train_files]
    test_images, test_labels = parts[variant.test_file]
    return ImageData(
        name=name,
        train_images=np.concatenate([images for images, _ in train]),
        train_labels=np.concatenate([labels for _, labels in train]),
        test_images=test_images,
        test_labels=test_labels,
        class_names=variant.class_names,
        origin=f"official binary files, {location.path}",
    )


def _read_files(location, variant, files):
    """Return the contents of files in the folder or the archive, by name."""
    path = location.path
    try:
        if location.kind == "folder":
            contents = {file: (path / file).read_bytes() for file in files}
        else:
            names = {f"{variant.folder}/{file}": file for file in files}
            with tarfile.open(path) as archive:
                contents = {}
                for member in archive:
                    if member.name in names and member.isreg():
                        contents[names[member.name]] = cast(Any, archive.extractfile(member)).read()
                # The checksum of a compressed file is at its end.
                while cast(Any, archive.fileobj).read(2**20):
                    pass
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(":")
        raise DataError(f"{path} cannot be read as {variant.archive}: {reason}. Download it again.") from error
    missing = [file for file in files if file not in contents]
    if missing:
        raise DataError(f"{path} cannot be read as {variant.archive}: no {missing[0]} in it. Download it again.")
    return contents


def _decode(data, variant, records, path):
    length = records * variant.record_bytes
    if len(data) != length:
        raise DataError(
            f"{path} must have {length:,} bytes ({records:,} records of {variant.record_bytes}). "
            f"Received: {len(data):,} bytes. Download it again."
        )
    table = np.frombuffer(data, np.uint8).reshape(records, variant.record_bytes)
    channels_first = table[:, variant.label_bytes :].reshape(records, 3, 32, 32)
    labels = table[:, variant.label_bytes - 1].astype(np.int32)
    return np.ascontiguousarray(channels_first.transpose(0, 2, 3, 1)), labels
