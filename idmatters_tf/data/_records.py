"""Random access to labeled images in a TFRecord data set of TensorFlow Datasets.

TFRecord files have no index. The offset of each record is computed once from the lengths in the headers, so that a
batch is a function of (seed, step) and a resumed run does not read earlier records.
"""

import os
import pathlib
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from idmatters_tf.data.images import DataError

# Length (8 bytes) and checksum of the length (4) before each record; checksum of the record (4) after it.
_HEADER, _AROUND = 8, 16


# Indices to arguments of `Read`, and these to a compressed image and its label.
LookUp: TypeAlias = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
Read: TypeAlias = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


class Records:
    """Images of one split.

    Args:
        paths: TFRecord files in order. Each record is a `tf.train.Example` with `image`, a compressed image, and
            `label`.
        class_names: one string per class.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]], class_names: Sequence[str]):
        self.class_names = tuple(class_names)
        self._paths = [str(path) for path in paths]
        offsets = [_offsets(path) for path in self._paths]
        self._counts = [len(places) for places in offsets]
        self._file_numbers = np.repeat(np.arange(len(offsets), dtype=np.int64), self._counts)
        self._offsets = np.concatenate(offsets) if offsets else np.zeros(0, np.int64)
        if not len(self):
            raise DataError(
                f"there are no records in {self._paths[:1]} and the following files. Prepare the data again."
            )

    def __len__(self) -> int:
        return len(self._offsets)

    def without(self, broken: Iterable[int]) -> "Records":
        """Return the records without those at the given indices."""
        kept = np.setdiff1d(np.arange(len(self)), list(broken))
        other = object.__new__(Records)
        other.class_names, other._paths, other._counts = self.class_names, self._paths, self._counts
        other._file_numbers, other._offsets = self._file_numbers[kept], self._offsets[kept]
        return other

    def shuffle(self) -> list[int]:
        """Return all indices in the order of the records, which TensorFlow Datasets has shuffled."""
        return list(range(len(self)))

    def describe(self, place: int) -> str:
        """Return a description of the file and the offset of a record."""
        return f"the record at byte {self._offsets[place]} of {self._paths[self._file_numbers[place]]}"

    def digest(self, crc: int = 0) -> int:
        """Return a checksum of the file names and the record offsets, continued from `crc`."""
        names = "\n".join(pathlib.Path(path).name for path in self._paths)
        return zlib.crc32(self._offsets.tobytes(), zlib.crc32(names.encode(), crc))

    def reader(self) -> tuple[LookUp, Read]:
        """Return two functions for `tf.data`.

        The first maps int64 indices `(n,)` to file names and offsets `(n,)`. The second maps one file name and offset
        to a compressed image and its int32 label.
        """
        with tf.device("CPU:0"):
            paths = tf.constant(self._paths)
            numbers, offsets = tf.constant(self._file_numbers), tf.constant(self._offsets)
        element: dict[str, Any] = {"output_types": [tf.string], "output_shapes": [[]]}
        features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

        def look_up(places):
            return tf.gather(paths, tf.gather(numbers, places)), tf.gather(offsets, places)

        def read(path, offset):
            # The public TFRecordDataset has no offsets.
            records = tf.raw_ops.TFRecordDatasetV2(
                filenames=[path], compression_type="", buffer_size=0, byte_offsets=[offset]
            )
            one = tf.raw_ops.TakeDataset(input_dataset=records, count=1, **element)
            (record,) = tf.raw_ops.DatasetToSingleElement(dataset=one, **element)
            example = tf.io.parse_single_example(record, features)
            return example["image"], tf.cast(example["label"], tf.int32)

        return look_up, read


def _offsets(path):
    """Return the offset of each record of a file."""
    try:
        size = os.path.getsize(path)
        places, place = [], 0
        with open(path, "rb", buffering=0) as stream:
            while place < size:
                places.append(place)
                header = os.pread(stream.fileno(), _HEADER, place)
                (length,) = struct.unpack("<Q", header)
                place += length + _AROUND
    except (OSError, struct.error) as error:
        raise DataError(f"{path} cannot be read as a TFRecord file: {error}. Prepare the data again.") from error
    if place != size:
        raise DataError(f"{path} ends inside a record. Prepare the data again.")
    return np.array(places, np.int64)
