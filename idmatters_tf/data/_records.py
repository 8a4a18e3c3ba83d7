"""Labelled images in a TFRecord data set of TensorFlow Datasets, any one of them at any time.

Such files are meant to be read from the front. Here the place of every record is looked up once, from the lengths that
stand before each of them, so that a batch can be a function of (seed, step) and a resumed run reads nothing twice.
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

# Before each record its length (8 bytes) and that length's checksum (4), after it its own checksum (4).
_HEADER, _AROUND = 8, 16


# From places to what `read` takes, and from that to a compressed image and its label.
LookUp: TypeAlias = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
Read: TypeAlias = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


class Records:
    """The images of one split.

    Args:
        paths: the TFRecord files, in order; each record is a `tf.train.Example` with `image` (a compressed image) and
            `label`.
        class_names: one string per class.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]], class_names: Sequence[str]):
        self.class_names = tuple(class_names)
        self._paths = [str(path) for path in paths]
        offsets = [_offsets(path) for path in self._paths]
        self._counts = [len(of_file) for of_file in offsets]
        self._file_numbers = np.repeat(np.arange(len(offsets), dtype=np.int64), self._counts)
        self._offsets = np.concatenate(offsets) if offsets else np.zeros(0, np.int64)
        if not len(self):
            raise DataError(
                f"there are no records in {self._paths[:1]} and the files after it. Prepare the data again."
            )

    def __len__(self) -> int:
        return len(self._offsets)

    def without(self, broken: Iterable[int]) -> "Records":
        """The same without the records at these places."""
        kept = np.setdiff1d(np.arange(len(self)), list(broken))
        other = object.__new__(Records)
        other.class_names, other._paths, other._counts = self.class_names, self._paths, self._counts
        other._file_numbers, other._offsets = self._file_numbers[kept], self._offsets[kept]
        return other

    def mixed(self) -> list[int]:
        """Return all places in the order of the records, which TensorFlow Datasets has shuffled."""
        return list(range(len(self)))

    def where(self, place: int) -> str:
        """The record's file and byte, in words."""
        return f"the record at byte {self._offsets[place]} of {self._paths[self._file_numbers[place]]}"

    def digest(self, crc: int = 0) -> int:
        """A checksum of the files' names and the records' places."""
        names = "\n".join(pathlib.Path(path).name for path in self._paths)
        return zlib.crc32(self._offsets.tobytes(), zlib.crc32(names.encode(), crc))

    def reader(self) -> tuple[LookUp, Read]:
        """Two functions for `tf.data`: from int64 places `(n,)` to files and offsets of that shape, and from one of
        each to the compressed image and its int32 label.
        """
        with tf.device("CPU:0"):
            paths = tf.constant(self._paths)
            numbers, offsets = tf.constant(self._file_numbers), tf.constant(self._offsets)
        element: dict[str, Any] = {"output_types": [tf.string], "output_shapes": [[]]}
        features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

        def look_up(places):
            return tf.gather(paths, tf.gather(numbers, places)), tf.gather(offsets, places)

        def read(path, offset):
            # The public TFRecordDataset cannot begin inside a file.
            records = tf.raw_ops.TFRecordDatasetV2(
                filenames=[path], compression_type="", buffer_size=0, byte_offsets=[offset]
            )
            one = tf.raw_ops.TakeDataset(input_dataset=records, count=1, **element)
            (record,) = tf.raw_ops.DatasetToSingleElement(dataset=one, **element)
            example = tf.io.parse_single_example(record, features)
            return example["image"], tf.cast(example["label"], tf.int32)

        return look_up, read


def _offsets(path):
    """Where each record of a file begins."""
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
        raise DataError(f"{path} ends in the middle of a record. Prepare the data again.")
    return np.array(places, np.int64)
