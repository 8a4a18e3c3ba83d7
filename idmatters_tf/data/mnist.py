"""MNIST (LeCun, Cortes & Burges, 1998): 28 x 28 grayscale images of handwritten digits.

The first of these sources that is found is used:

- the four official idx files, plain or compressed (`train-images-idx3-ubyte` or `.gz`, and so on; also spelled with a
  dot, `train-images.idx3-ubyte`);
- the data set prepared by TensorFlow Datasets (`mnist`), which also downloads it.

Finding files requires neither TensorFlow nor the network.
"""

import gzip
import math
import zlib

import numpy as np

from idmatters_tf.data import _sources
from idmatters_tf.data._sources import Location, Path
from idmatters_tf.data.images import DataError, ImageData

NAME = "mnist"
# TensorFlow Datasets downloads from here.
SERVER = "https://storage.googleapis.com/cvdf-datasets/mnist/"

FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}


def locate(data_dir: Path | None = None) -> Location | None:
    """Find the files of MNIST without reading them.

    Args:
        data_dir: the folder of the data set, or a folder that contains it directly. None: the folder of TensorFlow
            Datasets (`$TFDS_DATA_DIR`, or `~/tensorflow_datasets`).

    Returns:
        A `Location` of kind "folder" (of idx files) or "tfds", or None if nothing is found.
    """
    for folder in _sources.folders(_sources.data_root(data_dir)):
        if _file(folder, FILES["train_images"]) is not None:
            return Location("folder", folder)
        if _sources.is_prepared(NAME, folder):
            return Location("tfds", folder)
    return None


def load(data_dir: Path | None = None, download: bool = False) -> ImageData:
    """Load MNIST into memory.

    Args:
        data_dir: see `locate`.
        download: True downloads missing data through TensorFlow Datasets into `data_dir`.

    Returns:
        An `ImageData` with 60,000 training and 10,000 test images of shape (28, 28, 1).

    Raises:
        DataError: no files were found or downloaded, or files are damaged.
    """
    location = locate(data_dir)
    if location is not None and location.kind != "tfds":
        return _load_idx(location.path)
    if location is None:
        looked_for = f"{FILES['train_images']} or {FILES['train_images']}.gz"
        _sources.require_download(NAME, data_dir, looked_for, SERVER if download else None)
    return _sources.load_tfds(NAME, location, data_dir)


def _load_idx(folder):
    arrays = {}
    for part, name in FILES.items():
        path = _file(folder, name)
        if path is None:
            raise DataError(f"{folder / name} and {name}.gz are missing. All four files are required.")
        if part.endswith("images"):
            arrays[part] = _read(path, (28, 28))[..., None]
        else:
            arrays[part] = _read(path, ()).astype(np.int32)
    names = tuple(map(str, range(10)))
    return ImageData(name=NAME, class_names=names, origin=f"official idx files, {folder}", **arrays)


def _file(folder, name):
    """Return the path of a file, compressed or not, in either spelling of its name, or None."""
    spellings = (name, name.replace("-idx", ".idx"))
    candidates = (folder / f"{spelling}{ending}" for spelling in spellings for ending in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def _read(path, entry_shape):
    """Return the array in an idx file, uint8 of shape (n, *entry_shape)."""
    try:
        content = path.read_bytes()
        data = gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} cannot be decompressed: {error}. Download it again.") from error
    # Two zeros, 8 for unsigned bytes, the number of dimensions, the number of entries and their shape.
    header = bytes([0, 0, 8, 1 + len(entry_shape)]), np.array(entry_shape, ">u4").tobytes()
    start = 8 + len(header[1])
    count = int.from_bytes(data[4:8], "big")
    length = start + count * math.prod(entry_shape)
    if (data[:4], data[8:start]) != header or len(data) != length:
        raise DataError(
            f"{path} must be an idx file of unsigned bytes with entries of shape {entry_shape}, {length:,} bytes in "
            f"all by its own header. Received: {len(data):,} bytes. Download it again."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(count, *entry_shape)
