"""CIFAR-10, CIFAR-100 (Krizhevsky, 2009) and MNIST (LeCun, Cortes & Burges, 1998), from their official files.

The first of these sources that is found is used:

- the official files: the folder `cifar-10-batches-bin` or `cifar-100-binary`, which is the unpacked
  `cifar-10-binary.tar.gz` or `cifar-100-binary.tar.gz`; the four idx files of MNIST, `train-images-idx3-ubyte.gz` and
  so on, or without `.gz`;
- the data set prepared by TensorFlow Datasets (`cifar10`, `cifar100`, `mnist`), which also downloads it.

Finding and checking files requires neither TensorFlow nor the network.
"""

import dataclasses
import gzip
import math
import os
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from idmatters_tf.data.images import DataError, ImageData, Path


class Location(NamedTuple):
    """Path and kind of a data set that was found: "folder" with official files, or "tfds"."""

    kind: str
    path: pathlib.Path


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
    """Data set of the same name in TensorFlow Datasets."""

    server: str  # from which TensorFlow Datasets downloads it
    files: tuple[_File, ...]
    names: str = ""  # file with the names of the classes; without it they are the digits
    folder: str = ""  # required name of the folder
    archive: str = ""  # that contains the folder


_COLORS, _GRAYS = (3, 32, 32), (1, 28, 28)
DATA_SETS: Mapping[str, _DataSet] = {
    "cifar10": _DataSet(
        "https://www.cs.toronto.edu",
        (
            *(_File(f"data_batch_{number}.bin", "train", 10_000, 1, _COLORS) for number in range(1, 6)),
            _File("test_batch.bin", "test", 10_000, 1, _COLORS),
        ),
        "batches.meta.txt",
        "cifar-10-batches-bin",
        "cifar-10-binary.tar.gz",
    ),
    # A coarse label and a fine label.
    "cifar100": _DataSet(
        "https://www.cs.toronto.edu",
        (_File("train.bin", "train", 50_000, 2, _COLORS), _File("test.bin", "test", 10_000, 2, _COLORS)),
        "fine_label_names.txt",
        "cifar-100-binary",
        "cifar-100-binary.tar.gz",
    ),
    "mnist": _DataSet(
        "https://storage.googleapis.com",
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
        data_dir: the folder of the data set, or a folder that contains it itself or in a folder directly below. None:
            the folder of TensorFlow Datasets (`$TFDS_DATA_DIR`, or `~/tensorflow_datasets`).

    Returns:
        A `Location`, or None if nothing is found.
    """
    known, root = DATA_SETS[name], _data_root(data_dir)
    below = sorted(entry for entry in root.iterdir() if entry.is_dir()) if root.is_dir() else ()
    for folder in (root, *below):
        for candidate in (folder, folder / known.folder):
            if known.folder in ("", candidate.name) and _path(candidate, known.files[-1].name).is_file():
                return Location("folder", candidate)
        if any((folder / name).glob("*/dataset_info.json")):
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
    if location is not None and location.kind == "folder":
        return _load_files(name, location.path)
    if location is None and not download:
        raise DataError(_describe_missing(name, _data_root(data_dir)), arguments=("data_dir", "download"))
    return _load_tfds(name, location, data_dir)


def _data_root(data_dir: Path | None) -> pathlib.Path:
    if data_dir is None:
        data_dir = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return pathlib.Path(data_dir).expanduser()


def _path(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Return the path of a file, which may be compressed."""
    compressed = folder / f"{name}.gz"
    return compressed if compressed.is_file() else folder / name


def _load_files(name: str, folder: pathlib.Path) -> ImageData:
    known = DATA_SETS[name]
    decoded = {file: _decode(file, folder) for file in known.files}

    def load_split(split: str) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
        parts = [part for file, part in decoded.items() if file.split == split]
        images = np.concatenate([images for images, _ in parts if images.size])
        return images, np.concatenate([labels for _, labels in parts if labels.size])

    class_names = _read(_path(folder, known.names)).decode().split() if known.names else map(str, range(10))
    origin = f"official files, {folder}"
    return ImageData(name, *load_split("train"), *load_split("test"), tuple(class_names), origin)


def _read(path: pathlib.Path) -> bytes:
    """Return the content of a file, without its compression."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (zlib.error, EOFError, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}. Download it again.") from error


def _decode(file: _File, folder: pathlib.Path) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return the images, (n, rows, cols, channels), and the labels, (n,), in a file; empty arrays if it has none."""
    path = _path(folder, file.name)
    content = _read(path)
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

    if location is None:
        _check_server(DATA_SETS[name].server)
    folder = _data_root(data_dir) if location is None else location.path
    tfds.display_progress_bar(location is None)
    options = {"split": ["train", "test"], "batch_size": -1, "download": location is None, "with_info": True}
    try:
        # In the order of the files, so that the order of training depends on the seed only.
        loaded: Any = tfds.load(name, data_dir=str(folder), shuffle_files=False, **options)
        splits, info = loaded
        train, test = ((each["image"].numpy(), each["label"].numpy().astype(np.int32)) for each in splits)
    # TensorFlow Datasets has no class of errors for invalid files.
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        raise DataError(
            f"TensorFlow Datasets cannot prepare or read {name} in {folder} ({type(error).__name__}: {reason}). If its "
            f"files are damaged, remove them and prepare the data set again.",
            arguments=("data_dir",),
        ) from error
    origin = f"TensorFlow Datasets {info.full_name}, {info.data_dir}"
    return ImageData(name, *train, *test, tuple(info.features["label"].names), origin)


def _check_server(server: str) -> None:
    """Raise DataError if a server does not answer within seconds. TensorFlow Datasets would retry for minutes."""
    import requests  # of TensorFlow Datasets, with the same proxies and certificates

    try:
        requests.head(server, timeout=5)
    except requests.RequestException as error:
        text = f"{server} cannot be reached ({type(error).__name__}). Pass the folder of the files as `data_dir`."
        raise DataError(text, arguments=("data_dir",)) from error


def _describe_missing(name: str, root: pathlib.Path) -> str:
    known = DATA_SETS[name]
    files, hint = f"{known.files[0].name}[.gz]", ""
    if known.archive:
        files = f"{known.folder}/"
        hint = f" The Python version, with pickles, is not supported: download {known.archive} and unpack it."
    return (
        f"{name} was not found in {root}{'' if root.exists() else ', which does not exist'} (looked for {files} and a "
        f"prepared TensorFlow data set {name}/).{hint} Pass the folder that holds one of these as `data_dir`."
    )
