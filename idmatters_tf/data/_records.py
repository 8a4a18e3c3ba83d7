"""Random access to labeled images in a TFRecord data set of TensorFlow Datasets.

TFRecord files have no index. The offset of each record is computed once from the lengths in the headers, so that a
batch is a function of (seed, step) and a resumed run does not read earlier records.
"""

import os
import pathlib
import struct
from collections.abc import Iterable, Sequence

from idmatters_tf.data._folders import ImageFiles
from idmatters_tf.data.images import DataError


def list_records(folder: pathlib.Path, names: Iterable[str], class_names: Sequence[str]) -> ImageFiles:
    """List the images of one split.

    Args:
        folder: folder of the files.
        names: TFRecord files in order. Each record is a `tf.train.Example` with `image`, a compressed image, and
            `label`.
        class_names: one string per class.

    Raises:
        DataError: a file cannot be read, or ends inside a record.
    """
    records = [f"{name}@{offset}" for name in names for offset in _offsets(folder / name)]
    return ImageFiles(folder, records, None, tuple(class_names))


def _offsets(path: pathlib.Path) -> list[int]:
    """Return the offset of each record of a file."""
    try:
        size = os.path.getsize(path)
        offsets: list[int] = []
        offset = 0
        with open(path, "rb", buffering=0) as stream:
            while offset < size:
                offsets.append(offset)
                (length,) = struct.unpack("<Q", os.pread(stream.fileno(), 8, offset))
                # The length (8 bytes) and its checksum (4) before the record, a checksum (4) after it.
                offset += length + 16
    except (OSError, struct.error) as error:
        raise DataError(f"{path} cannot be read as a TFRecord file: {error}. Prepare the data again.") from error
    if offset != size:
        raise DataError(f"{path} ends inside a record. Prepare the data again.")
    return offsets
