"""Batches of images that are read and decoded during training.

Like in `idmatters_tf.data.batches`, order and random choices are functions of (seed, position): a resumed run starts
with the next image, and a replica reads its share only.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from idmatters_tf._arguments import check_choice, positive_integer
from idmatters_tf._environment import cores
from idmatters_tf.data import _decoding
from idmatters_tf.data._folders import ImageFiles
from idmatters_tf.data._records import Records
from idmatters_tf.data.augment import standardize
from idmatters_tf.data.batches import replica_batch, shuffle_positions, without_autotuning
from idmatters_tf.data.imagenet import StreamedImageData
from idmatters_tf.data.images import ImageData
from idmatters_tf.data.protocols import ALONE, Int, Share

_AUGMENTATION, _FLIPS = 3, 2


class StreamTrainBatches:
    """Training batches of images in files.

    The interface is that of `idmatters_tf.data.batches.TrainBatches`.

    Args:
        images: `ImageFiles` or `Records`.
        batch_size: size of the global batch.
        seed: non-negative integer below 2^31.
        augmentation: "paper", "standard" or "none", see `idmatters_tf.data._decoding`.
        size: side of the images for the network in pixels.
        smallest_area: smallest fraction of the area of an image that "standard" crops, in (0, 1].
    """

    def __init__(
        self,
        images: ImageFiles | Records,
        batch_size: int,
        seed: int = 0,
        augmentation: str = "paper",
        size: int = 224,
        smallest_area: float = _decoding.SMALLEST_AREA,
    ):
        positive_integer("batch_size", batch_size)
        check_choice("augmentation", augmentation, _decoding.AUGMENTATIONS)
        if not 0 < smallest_area <= 1:
            raise ValueError(f"Argument `smallest_area` must be in (0, 1]. Received: smallest_area={smallest_area}")
        self.count, self.batch_size, self.seed = len(images), batch_size, seed
        self.augmentation, self.size, self.smallest_area = augmentation, size, smallest_area
        self._source = _make_reader(images)

    def indices(self, positions: tf.Tensor) -> tf.Tensor:
        """Return the index of the image at each position of the endless sequence, int64 `(count,)`."""
        return shuffle_positions(positions, self.count, self.seed)

    def keys(self, positions: tf.Tensor) -> tf.Tensor:
        """Return the key of the random window at each position, int64 `(count, 2)`."""
        seeds = tf.fill(tf.shape(positions), tf.constant((self.seed << 2) + _AUGMENTATION, tf.int64))
        return tf.stack([seeds, positions], 1)

    def batch(self, step: Int, start: int = 0, stop: int | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the preprocessed examples from `start` to `stop` of the global batch of a step."""
        stop = self.batch_size if stop is None else stop
        data = tf.data.Dataset.from_tensors(tf.cast(step, tf.int64))
        return self._batches(data, lambda step: (step, start), stop - start).get_single_element()

    def dataset(self, first_step: Int, steps: int, share: Share = ALONE, stride: int = 1) -> tf.data.Dataset:
        """Return the batches of `steps` steps, with one element for each replica in turn."""
        size = replica_batch(self.batch_size, share)

        def step_and_start(number):
            step = first_step + number // share.count * stride
            return step, (share.first + number % share.count) * size

        return without_autotuning(
            self._batches(tf.data.Dataset.range(steps * share.count), step_and_start, size).prefetch(2)
        )

    def _batches(self, numbers, step_and_start, size):
        def choose(number):
            # For the whole batch: small operations for each image would cost as much as decoding.
            step, start = step_and_start(number)
            positions = step * self.batch_size + start + tf.range(size, dtype=tf.int64)
            keys = self.keys(positions)
            flips = tf.zeros([self.batch_size], tf.int32)
            if self.augmentation != "none":
                key = tf.stack([tf.constant((self.seed << 2) + _FLIPS, tf.int64), step])
                flips = tf.random.stateless_uniform([self.batch_size], key, 0, 2, tf.int32)
            return (*self._source.look_up(self.indices(positions)), keys, flips[start : start + size] > 0)

        def decode(contents, labels, keys, flips):
            def window(number):
                if self.augmentation != "standard":
                    return None
                return lambda shape: _decoding.random_window(shape, keys[number], self.smallest_area)

            images = _decoding.decode_batch(size, contents, self.size, window)
            flipped = tf.where(flips[:, tf.newaxis, tf.newaxis, tf.newaxis], images[:, :, ::-1], images)
            return standardize(flipped), labels

        return self._source.map_contents(numbers.map(choose, num_parallel_calls=2), size, decode)


class StreamEvaluationBatches:
    """Batches that contain every image in files once, without augmentation.

    The interface is that of `idmatters_tf.data.batches.EvaluationBatches`. The arguments are those of
    `StreamTrainBatches`.
    """

    def __init__(self, images: ImageFiles | Records, batch_size: int, augmentation: str = "paper", size: int = 224):
        self.count, self.batch_size, self.augmentation, self.size = len(images), batch_size, augmentation, size
        self._source = _make_reader(images)

    @property
    def steps(self) -> int:
        """Number of global batches that contain all images."""
        return -(-self.count // self.batch_size)

    def dataset(
        self, share: Share = ALONE, first: Int = 0, steps: int | None = None, standardized: bool = True
    ) -> tf.data.Dataset:
        """Return (images, labels, weights), with one element for each replica in turn.

        Args:
            share: replicas that the data set feeds.
            first: first global batch.
            steps: number of global batches (default: all).
            standardized: False for images in 0..255.
        """
        size = replica_batch(self.batch_size, share)
        steps = self.steps if steps is None else steps

        def choose(number):
            start = (first + number // share.count) * self.batch_size + (share.first + number % share.count) * size
            places = start + tf.range(size, dtype=tf.int64)
            weights = tf.cast(places < self.count, tf.float32)
            return (*self._source.look_up(tf.minimum(places, self.count - 1)), weights)

        def decode(contents, labels, weights):
            window = _decoding.evaluation_window(self.augmentation)
            images = _decoding.decode_batch(size, contents, self.size, lambda _: window)
            return standardize(images) if standardized else images, labels, weights

        chosen = tf.data.Dataset.range(steps * share.count).map(choose, num_parallel_calls=2)
        return without_autotuning(self._source.map_contents(chosen, size, decode).prefetch(2))


def decode_all(data: StreamedImageData) -> ImageData:
    """Decode all images of a data set, resized as with augmentation "none"."""
    parts = {}
    for split, files in (("train", data.train), ("test", data.test)):
        pixels = np.empty((len(files), data.size, data.size, 3), np.uint8)
        labels = np.empty(len(files), np.int32)
        batches = StreamEvaluationBatches(files, min(64, len(files)), "none", data.size)
        for number, (images, batch_labels, weights) in enumerate(batches.dataset(standardized=False)):
            count = int(np.sum(weights))
            part = slice(number * batches.batch_size, number * batches.batch_size + count)
            pixels[part] = np.round(images[:count])
            labels[part] = batch_labels[:count]
        parts |= {f"{split}_images": pixels, f"{split}_labels": labels}
    return ImageData(data.name, **parts, class_names=data.class_names, origin=data.origin)


class _Files:
    """Reader of `ImageFiles` for `tf.data`."""

    def __init__(self, files: ImageFiles) -> None:
        with tf.device("CPU:0"):
            # Bytes, because file names may not be UTF-8.
            self._names = tf.constant([os.fsencode(name) for name in files.names])
            self._labels = tf.constant(files.labels, tf.int32)
        self._root = os.fsencode(f"{files.root}/")

    def look_up(self, places):
        """Return the arguments of `read` for the images at int64 indices `(n,)`: two tensors of that shape."""
        return tf.strings.join([self._root, tf.gather(self._names, places)]), tf.gather(self._labels, places)

    def read(self, path, label):
        """Return a compressed image and its label."""
        return tf.io.read_file(path), label

    def map_contents(self, chosen, size, decode):
        """Return the data set of `decode(contents, labels, *rest)` for each batch of `chosen`.

        Args:
            chosen: data set of the results of `look_up` and further tensors `rest`.
            size: size of a batch.
            decode: function whose argument `contents` maps a number in the batch to a compressed image.
        """

        def both(paths, labels, *rest):
            return decode(lambda number: tf.io.read_file(paths[number]), labels, *rest)

        return chosen.map(both, num_parallel_calls=cores())


class _Records:
    """Reader of `Records` for `tf.data`, with the methods of `_Files`."""

    def __init__(self, records: Records) -> None:
        with tf.device("CPU:0"):
            self._paths = tf.constant(records.paths)
            self._numbers, self._offsets = tf.constant(records.file_numbers), tf.constant(records.offsets)

    def look_up(self, places):
        """Return the arguments of `read`, file names and offsets, see `_Files.look_up`."""
        return tf.gather(self._paths, tf.gather(self._numbers, places)), tf.gather(self._offsets, places)

    def read(self, path, offset):
        """Return a compressed image and its label."""
        element: dict[str, Any] = {"output_types": [tf.string], "output_shapes": [[]]}
        features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
        # The public TFRecordDataset has no offsets.
        records = tf.raw_ops.TFRecordDatasetV2(
            filenames=[path], compression_type="", buffer_size=0, byte_offsets=[offset]
        )
        one = tf.raw_ops.TakeDataset(input_dataset=records, count=1, **element)
        (record,) = tf.raw_ops.DatasetToSingleElement(dataset=one, **element)
        example = tf.io.parse_single_example(record, features)
        return example["image"], tf.cast(example["label"], tf.int32)

    def map_contents(self, chosen, size, decode):
        """Return the data set of `decode`, see `_Files.map_contents`."""

        def read(path, offset, *rest):
            return *self.read(path, offset), *rest

        def from_memory(contents, *rest):
            return decode(lambda number: contents[number], *rest)

        # Reading records is stateful, and `enable_op_determinism` runs a stateful map on one core. That is sufficient
        # for reading, but not for decoding, which therefore is a map of its own.
        records = chosen.unbatch().map(read, num_parallel_calls=cores()).batch(size, drop_remainder=True)
        return records.map(from_memory, num_parallel_calls=cores())


def _make_reader(images: ImageFiles | Records) -> "_Files | _Records":
    return _Records(images) if isinstance(images, Records) else _Files(images)


def find_broken(
    images: ImageFiles | Records, places: Iterable[int] | None = None, advance: Callable[[], object] = lambda: None
) -> list[int]:
    """Read and decode images, and return the sorted indices of the images that cannot be decoded.

    Args:
        images: `ImageFiles` or `Records`.
        places: indices of the images (default: all).
        advance: called after each 100 images that can be decoded.
    """
    places = range(len(images)) if places is None else sorted(set(places))
    if not places:
        return []
    reader = _make_reader(images)

    def attempt(place):
        contents, _ = reader.read(*(values[0] for values in reader.look_up(place[tf.newaxis])))
        shape = tf.shape(_decoding.decode(contents))
        return tf.stack([place, tf.cast(tf.reduce_min(shape), tf.int64)])

    data = tf.data.Dataset.from_tensor_slices(tf.constant(list(places), tf.int64))
    data = without_autotuning(data.map(attempt, num_parallel_calls=4).ignore_errors())
    good = set()
    for number, (place, _) in enumerate(data.as_numpy_iterator()):
        good.add(int(place))
        if number % 100 == 99:
            advance()
    return [place for place in places if place not in good]
