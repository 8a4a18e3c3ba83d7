"""Random access to labeled images in a TFRecord data set of TensorFlow Datasets.

TFRecord files have no index. The offset of each record is computed once from the lengths in the headers, so that a
batch is a function of (seed, step) and a resumed run does not read earlier records.
"""

import copy
import os
import pathlib
import struct
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from idmatters_tf.data.images import DataError


class Records:
    """Images of one split.

    Args:
        paths: TFRecord files in order. Each record is a `tf.train.Example` with `image`, a compressed image, and
            `label`.
        class_names: one string per class.

    Attributes:
        file_numbers, offsets: index of the file in `paths` and offset in bytes of each record, int64 `(n,)`.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]], class_names: Sequence[str]):
        self.class_names = tuple(class_names)
        self.paths = [str(path) for path in paths]
        offsets = [_offsets(path) for path in self.paths]
        self.file_numbers = np.repeat(np.arange(len(offsets), dtype=np.int64), list(map(len, offsets)))
        self.offsets = np.concatenate(offsets)

    def __len__(self) -> int:
        return len(self.offsets)

    def without(self, broken: Iterable[int]) -> "Records":
        """Return the records without those at the given indices."""
        kept = np.setdiff1d(np.arange(len(self)), list(broken))
        other = copy.copy(self)
        other.file_numbers, other.offsets = self.file_numbers[kept], self.offsets[kept]
        return other

    def shuffle(self) -> list[int]:
        """Return all indices in the order of the records, which TensorFlow Datasets has shuffled."""
        return list(range(len(self)))

    def describe(self, index: int) -> str:
        """Return a description of the file and the offset of a record."""
        return f"the record at byte {self.offsets[index]} of {self.paths[self.file_numbers[index]]}"

    def digest(self, crc: int = 0) -> int:
        """Return a checksum of the file names and the record offsets, continued from `crc`."""
        names = "\n".join(pathlib.Path(path).name for path in self.paths)
        return zlib.crc32(self.offsets.tobytes(), zlib.crc32(names.encode(), crc))


def _offsets(path):
    """Return the offset of each record of a file."""
    try:
        size = os.path.getsize(path)
        offsets = []
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
    return np.array(offsets, np.int64)
