"""CIFAR-10, CIFAR-100 (Krizhevsky, 2009) and MNIST (LeCun, Cortes & Burges, 1998), from their official files.

The first of these sources that is found is used:

- the official files: `cifar-10-binary.tar.gz` / `cifar-100-binary.tar.gz`, or the unpacked folder
  `cifar-10-batches-bin` / `cifar-100-binary`; the four idx files of MNIST,
  `train-images-idx3-ubyte.gz` and so on, or without `.gz`;
- the data set prepared by TensorFlow Datasets (`cifar10`, `cifar100`, `mnist`), which also downloads it.

Finding and checking files requires neither TensorFlow nor the network.
"""

import dataclasses
import gzip
import math
import pathlib
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmatters_tf.data._sources import Location, Path, as_data_error, data_root, is_prepared
from idmatters_tf.data.images import DataError, ImageData


@dataclasses.dataclass(frozen=True)
class _File:
    """File of one record for each image: labels, of which the last one counts, then pixels, channels first."""

    name: str
    split: str
    records: int
    labels: int = 0
    shape: tuple[int, ...] = (0, 0, 0)
    is_idx: bool = False

    @property
    def header(self) -> bytes:
        """Two zeros, 8 for unsigned bytes, the number of axes, and the shape."""
        if not self.is_idx:
            return b""
        axes = (self.records, *(self.shape[1:] if self.shape[0] else ()))
        return bytes([0, 0, 8, len(axes)]) + np.array(axes, ">u4").tobytes()

    @property
    def record_bytes(self) -> int:
        return self.labels + math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class _DataSet:
    """Data set of the same name in TensorFlow Datasets, which downloads it from `server`."""

    server: str
    class_names: tuple[str, ...]
    files: tuple[_File, ...]
    folder: str = ""  # required name of the folder
    archive: str = ""


def _cifar(folder: str, archive: str, class_names: str, *files: _File) -> _DataSet:
    return _DataSet("https://www.cs.toronto.edu/~kriz/", tuple(class_names.split()), files, folder, archive)


_COLORS, _GRAYS = (3, 32, 32), (1, 28, 28)
DATA_SETS: Mapping[str, _DataSet] = {
    "cifar10": _cifar(
        "cifar-10-batches-bin",
        "cifar-10-binary.tar.gz",
        "airplane automobile bird cat deer dog frog horse ship truck",
        *(_File(f"data_batch_{number}.bin", "train", 10_000, 1, _COLORS) for number in range(1, 6)),
        _File("test_batch.bin", "test", 10_000, 1, _COLORS),
    ),
    # A coarse label and a fine label. The names are those of fine_label_names.txt.
    "cifar100": _cifar(
        "cifar-100-binary",
        "cifar-100-binary.tar.gz",
        """
        apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel
        can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
        dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
        lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter
        palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road
        rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower
        sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
        willow_tree wolf woman worm
        """,
        _File("train.bin", "train", 50_000, 2, _COLORS),
        _File("test.bin", "test", 10_000, 2, _COLORS),
    ),
    "mnist": _DataSet(
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        tuple(map(str, range(10))),
        (
            _File("train-images-idx3-ubyte", "train", 60_000, shape=_GRAYS, is_idx=True),
            _File("train-labels-idx1-ubyte", "train", 60_000, labels=1, is_idx=True),
            _File("t10k-images-idx3-ubyte", "test", 10_000, shape=_GRAYS, is_idx=True),
            _File("t10k-labels-idx1-ubyte", "test", 10_000, labels=1, is_idx=True),
        ),
    ),
}


def locate(name: str, data_dir: Path | None = None) -> Location | None:
    """Find the files of a data set without reading them.

    Args:
        name: "cifar10", "cifar100" or "mnist".
        data_dir: the archive, the folder of the data set, or a folder that contains one of these itself or in a folder
            directly below. None: the folder of TensorFlow Datasets (`$TFDS_DATA_DIR`, or `~/tensorflow_datasets`).

    Returns:
        A `Location` of kind "folder", "archive" or "tfds", or None if nothing is found.
    """
    known = DATA_SETS[name]
    root = data_root(data_dir)
    if root.is_file() and known.archive:
        return Location("archive", root)
    below = sorted(entry for entry in root.iterdir() if entry.is_dir()) if root.is_dir() else ()
    for folder in (root, *below):
        for candidate in (folder, folder / known.folder):
            if known.folder in ("", candidate.name) and _find(candidate, known.files[-1].name) is not None:
                return Location("folder", candidate)
        if known.archive and (folder / known.archive).is_file():
            return Location("archive", folder / known.archive)
        if is_prepared(name, folder):
            return Location("tfds", folder)
    return None


def load(name: str, data_dir: Path | None = None, download: bool = False) -> ImageData:
    """Load a data set into memory.

    Args:
        name: "cifar10", "cifar100" or "mnist".
        data_dir: see `locate`.
        download: True downloads missing data through TensorFlow Datasets into `data_dir`.

    Returns:
        An `ImageData` with 50,000 training images of shape (32, 32, 3), of MNIST 60,000 of shape (28, 28, 1), and
        10,000 test images.

    Raises:
        DataError: no files were found or downloaded, or files have the wrong length or invalid labels.
    """
    if name not in DATA_SETS:
        raise DataError(f"Argument `name` must be one of {', '.join(map(repr, DATA_SETS))}. Received: name={name!r}")
    location = locate(name, data_dir)
    if location is not None and location.kind != "tfds":
        return _load_files(name, location)
    if location is None:
        _require_download(name, data_dir, download)
    return _load_tfds(name, location, data_dir)


def _load_files(name: str, location: Location) -> ImageData:
    known = DATA_SETS[name]
    contents = _read(location, known)
    decoded = {file: _decode(contents[file.name], file, location.path / file.name) for file in known.files}

    def load_split(split: str) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
        parts = [part for file, part in decoded.items() if file.split == split]
        images = np.concatenate([images for images, _ in parts if images.size])
        return images, np.concatenate([labels for _, labels in parts if labels.size])

    origin = f"official files, {location.path}"
    return ImageData(name, *load_split("train"), *load_split("test"), known.class_names, origin)


def _find(folder: pathlib.Path, name: str) -> pathlib.Path | None:
    """Return the path of a file, compressed or not, or None."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _read(location: Location, known: _DataSet) -> dict[str, bytes]:
    """Return the contents of all files in the folder or the archive, by name."""
    path = location.path
    contents: dict[str, bytes] = {}
    try:
        if location.kind == "archive":
            with gzip.open(path) as stream, tarfile.open(fileobj=stream) as archive:
                for member in archive:
                    folder, _, name = member.name.rpartition("/")
                    content = archive.extractfile(member) if folder == known.folder else None
                    if content is not None:
                        contents[name] = content.read()
                # The checksum of a compressed file is at its end.
                while stream.read(2**20):
                    pass
        for file in known.files if location.kind == "folder" else ():
            path = _find(location.path, file.name) or location.path / file.name
            contents[file.name] = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(":")
        raise DataError(f"{path} cannot be read: {reason}. Download it again.") from error
    missing = [file.name for file in known.files if file.name not in contents]
    if missing:
        raise DataError(f"{path} cannot be read as {known.archive}: no {missing[0]} in it. Download it again.")
    return contents


def _decode(content: bytes, file: _File, path: pathlib.Path) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return the images, (n, rows, cols, channels), and the labels, (n,), in a file; empty arrays if it has none."""
    start = len(file.header)
    length = start + file.records * file.record_bytes
    if len(content) != length or not content.startswith(file.header):
        header = f" after the header of an idx file, {start} bytes" if start else ""
        raise DataError(
            f"{path} must have {length:,} bytes ({file.records:,} records of {file.record_bytes}{header}). Received: "
            f"{len(content):,} bytes. Download it again."
        )
    table = np.frombuffer(content, np.uint8, offset=start).reshape(file.records, file.record_bytes)
    images = table[:, file.labels :].reshape(file.records, *file.shape).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), table[:, : file.labels][:, -1:].ravel().astype(np.int32)


def _load_tfds(name: str, location: Location | None, data_dir: Path | None) -> ImageData:
    """Load a data set through TensorFlow Datasets, which first downloads it to `data_dir` if it has no location."""
    import tensorflow_datasets as tfds

    folder = data_root(data_dir) if location is None else location.path
    tfds.display_progress_bar(location is None)
    options = {"split": ["train", "test"], "batch_size": -1, "download": location is None, "with_info": True}
    with as_data_error(name, folder):
        # In the order of the files, so that the order of training depends on the seed only.
        loaded: Any = tfds.load(name, data_dir=str(folder), shuffle_files=False, **options)
        splits, info = loaded
        train, test = ((each["image"].numpy(), each["label"].numpy().astype(np.int32)) for each in splits)
    origin = f"TensorFlow Datasets {info.full_name}, {info.data_dir}"
    return ImageData(name, *train, *test, tuple(info.features["label"].names), origin)


def _require_download(name: str, data_dir: Path | None, download: bool) -> None:
    """Raise DataError for a data set that was not found, unless its server answers within seconds.

    TensorFlow Datasets would retry for minutes.
    """
    known, root = DATA_SETS[name], data_root(data_dir)
    first = known.files[0].name
    files, hint = f"{first}, {first}.gz", ""
    if known.archive:
        files = f"{known.folder}/, {known.archive}"
        hint = (
            f" The Python version, with pickles, is not supported: download {known.archive}. "
            f"`idmatters_tf.data.shapes` (dataset shapes) needs no files."
        )
    missing = (
        f"{name} was not found in {root}{'' if root.exists() else ', which does not exist'} (looked for {files} and a "
        f"prepared TensorFlow data set {name}/).{hint} Pass the folder that holds one of these as `data_dir`."
    )
    if not download:
        raise DataError(missing, arguments=("data_dir", "download"))
    try:
        urllib.request.urlopen(urllib.request.Request(known.server, method="HEAD"), timeout=5).close()
    except urllib.error.HTTPError:
        return
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise DataError(f"{known.server} cannot be reached ({reason}). {missing}", arguments=("data_dir",)) from error
