"""MNIST (LeCun, Cortes & Burges, 1998): 28 x 28 greyscale images of handwritten digits.

Two kinds of source are understood, and the first one found is taken:

- the four official idx files, as they are or compressed (`train-images-idx3-ubyte` or `.gz`, and so on; also spelled
  with a dot, `train-images.idx3-ubyte`), in a folder or in its sub-folder `mnist`;
- a data set that TensorFlow Datasets has prepared (`mnist`), which is also the way it is downloaded.

Finding files needs neither TensorFlow nor the network, so a program can say at once what is missing.
"""

import gzip
import zlib

import numpy as np

from idmatters_tf.data import _sources
from idmatters_tf.data._sources import Location, Path
from idmatters_tf.data.images import DataError, ImageData

NAME = "mnist"
IMAGE_SHAPE = (28, 28, 1)
DOWNLOAD_HOST = ("storage.googleapis.com", 443)

FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}

# The third byte of an idx file says the type of its entries, the fourth the number of its dimensions.
_UNSIGNED_BYTES = 8


def locate(data_dir: Path | None = None) -> Location | None:
    """Looks for MNIST's files without reading them.

    Args:
        data_dir: a folder; it and the folders directly in it are searched. Or the data set's own folder among those of
            TensorFlow Datasets. None: the folder of TensorFlow Datasets (`$TFDS_DATA_DIR`, else
            `~/tensorflow_datasets`).

    Returns:
        A `Location` of kind "folder" (of idx files) or "tfds", or None.
    """
    for folder in _sources.folders(_sources.data_root(data_dir)):
        if _file(folder, FILES["train_images"]) is not None:
            return Location("folder", folder)
        prepared = _sources.prepared_in(NAME, folder)
        if prepared is not None:
            return Location("tfds", prepared)
    return None


def load(data_dir: Path | None = None, download: bool = False) -> ImageData:
    """Loads MNIST into memory.

    Args:
        data_dir: see `locate`.
        download: whether to download through TensorFlow Datasets, into `data_dir`, what is not found. Whether the
            server answers is tried for about a second before.

    Returns:
        An `ImageData` with 60,000 training and 10,000 test images of shape (28, 28, 1).

    Raises:
        DataError: nothing found (and nothing downloaded), or damaged files.
    """
    location = locate(data_dir)
    if location is None:
        if not (download and _sources.server_answers(DOWNLOAD_HOST)):
            looked_for = f"{FILES['train_images']} or {FILES['train_images']}.gz"
            server = DOWNLOAD_HOST[0] if download else None
            raise _sources.not_found(NAME, data_dir, looked_for, server)
        return _sources.load_tfds(NAME, _sources.data_root(data_dir), download=True)
    if location.kind == "tfds":
        return _sources.load_tfds(NAME, location.path, download=False)
    return _load_idx(location.path)


def _load_idx(folder):
    arrays = {}
    for part, name in FILES.items():
        path = _file(folder, name)
        if path is None:
            raise DataError(f"{folder / name} is missing, and so is {name}.gz. All four files belong together.")
        arrays[part] = _read(path, IMAGE_SHAPE[:2] if part.endswith("images") else ())
    for split in ("train", "test"):
        arrays[f"{split}_images"] = arrays[f"{split}_images"][..., None]
        arrays[f"{split}_labels"] = arrays[f"{split}_labels"].astype(np.int32)
    names = tuple(map(str, range(10)))
    return ImageData(name=NAME, class_names=names, origin=f"official idx files, {folder}", **arrays)


def _file(folder, name):
    """The path of one of the files, compressed or not, with either spelling of its name."""
    spellings = (name, name.replace("-idx", ".idx"))
    candidates = (folder / f"{spelling}{ending}" for spelling in spellings for ending in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def _read(path, entry_shape):
    """The array in an idx file, uint8 of shape (n, *entry_shape)."""
    try:
        content = path.read_bytes()
        data = gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} cannot be decompressed: {error}. Download it again.") from error
    dimensions = 1 + len(entry_shape)
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes([0, 0, _UNSIGNED_BYTES, dimensions]):
        raise DataError(
            f"{path} must be an idx file of unsigned bytes with {dimensions} dimensions. Received: a file that begins "
            f"with the bytes {data[:4].hex(' ') or 'of nothing'}. Download it again."
        )
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", dimensions, offset=4))
    length = header + int(np.prod(shape, dtype=np.int64))
    if shape[1:] != entry_shape or len(data) != length:
        raise DataError(
            f"{path} must hold entries of shape {entry_shape}, {length:,} bytes in all by its own header. Received: "
            f"entries of shape {shape[1:]}, {len(data):,} bytes. Download it again."
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)
