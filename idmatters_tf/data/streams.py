"""Batches of images that are read and decoded while training: as `idmatters_tf.data.batches`, from files.

The order and every random choice are functions of (seed, position), so a resumed run begins with the very next image
and a replica reads its share alone. The batches come in the form that `decoding.preprocess_on_device` takes: resizing,
flipping and standardising are left to the devices.
"""

import os
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from idmatters_tf._environment import cores
from idmatters_tf.data import _decoding
from idmatters_tf.data._folders import ImageFiles
from idmatters_tf.data._records import Records
from idmatters_tf.data.batches import shuffled, untuned
from idmatters_tf.data.imagenet import StreamedImageData
from idmatters_tf.data.images import DataError, ImageData
from idmatters_tf.data.protocols import ALONE, Int, Share

_AUGMENTATION, _FLIPS = 3, 2


class StreamTrainBatches:
    """The training batches: the interface of `idmatters_tf.data.batches.TrainBatches`, but the images of `dataset`
    still have to go through `decoding.preprocess_on_device`.

    Args:
        images: `idmatters_tf.data._folders.ImageFiles` or `idmatters_tf.data._records.Records`.
        batch_size: of the global batch.
        seed: a non-negative integer below 2^31.
        augmentation: one of `idmatters_tf.data._decoding.AUGMENTATIONS`.
        size: of the square that the network takes, in pixels.
        smallest_area: with "standard", the smallest share of an image's area that is cropped; in (0, 1].
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
        if batch_size < 1:
            raise ValueError(f"Argument `batch_size` must be positive. Received: batch_size={batch_size}")
        if augmentation not in _decoding.AUGMENTATIONS:
            allowed = ", ".join(map(repr, _decoding.AUGMENTATIONS))
            raise ValueError(f"Argument `augmentation` must be one of {allowed}. Received: {augmentation!r}")
        if not 0 < smallest_area <= 1:
            raise ValueError(f"Argument `smallest_area` must lie in (0, 1]. Received: smallest_area={smallest_area}")
        self.count, self.batch_size, self.seed = len(images), batch_size, seed
        self.augmentation, self.size, self.smallest_area = augmentation, size, smallest_area
        self._source = source(images)

    def indices(self, positions: tf.Tensor) -> tf.Tensor:
        """The image at each position of the endless sequence: int64 to int64, of the same shape `(count,)`."""
        return shuffled(positions, self.count, self.seed)

    def keys(self, positions: tf.Tensor) -> tf.Tensor:
        """The key of the random window at each position: int64 `(count,)` to int64 `(count, 2)`."""
        seeds = tf.fill(tf.shape(positions), tf.constant((self.seed << 2) + _AUGMENTATION, tf.int64))
        return tf.stack([seeds, positions], 1)

    def batch(self, step: Int, start: int = 0, stop: int | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """The examples from `start` to `stop` of a step's global batch, preprocessed; see `TrainBatches.batch`."""
        stop = self.batch_size if stop is None else stop
        data = tf.data.Dataset.from_tensors(tf.cast(step, tf.int64))
        images, labels = self._batches(data, lambda step: (step, start), stop - start).get_single_element()
        return _decoding.preprocess_on_device(images, self.size), labels

    def dataset(self, first_step: Int, steps: int, share: Share = ALONE, stride: int = 1) -> tf.data.Dataset:
        """The batches of `steps` steps, one element for each replica in turn; see `TrainBatches.dataset`."""
        size = _replica_batch(self.batch_size, share)

        def step_and_start(number):
            step = first_step + number // share.count * stride
            return step, (share.first + number % share.count) * size

        return untuned(self._batches(tf.data.Dataset.range(steps * share.count), step_and_start, size).prefetch(2))

    def _batches(self, numbers, step_and_start, size):
        def choose(number):
            # For a batch at once: small operations would cost as much as decoding if done for each image.
            step, start = step_and_start(number)
            positions = step * self.batch_size + start + tf.range(size, dtype=tf.int64)
            keys = self.keys(positions)
            flips = tf.zeros([self.batch_size], tf.int32)
            if self.augmentation != "none":
                key = tf.stack([tf.constant((self.seed << 2) + _FLIPS, tf.int64), step])
                flips = tf.random.stateless_uniform([self.batch_size], key, 0, 2, tf.int32)
            return (*self._source.look_up(self.indices(positions)), keys, flips[start : start + size] > 0)

        def decode(contents, labels, keys, flips):
            def image(number):
                window = _decoding.train_window(self.augmentation, keys[number], self.smallest_area)
                return _decoding.decode(contents(number), window)

            return (*_decoding.pack(size, image), flips), labels

        return self._source.decoded(numbers.map(choose, num_parallel_calls=2), size, decode)


class StreamEvaluationBatches:
    """Every image once: the interface of `idmatters_tf.data.batches.EvaluationBatches`, except that the images of
    `dataset` still have to go through `decoding.preprocess_on_device`.

    Args:
        images, batch_size, augmentation, size: as for `StreamTrainBatches`.
    """

    def __init__(self, images: ImageFiles | Records, batch_size: int, augmentation: str = "paper", size: int = 224):
        self.count, self.batch_size, self.augmentation, self.size = len(images), batch_size, augmentation, size
        self._source = source(images)

    @property
    def steps(self) -> int:
        """How many global batches hold all images."""
        return -(-self.count // self.batch_size)

    def dataset(self, share: Share = ALONE, first: Int = 0, steps: int | None = None) -> tf.data.Dataset:
        """(images, labels, weights), one element for each replica in turn; see `EvaluationBatches.dataset`."""
        size = _replica_batch(self.batch_size, share)
        steps = self.steps if steps is None else steps

        def choose(number):
            start = (first + number // share.count) * self.batch_size + (share.first + number % share.count) * size
            places = start + tf.range(size, dtype=tf.int64)
            weights = tf.cast(places < self.count, tf.float32)
            return (*self._source.look_up(tf.minimum(places, self.count - 1)), weights)

        def decode(contents, labels, weights):
            window = _decoding.evaluation_window(self.augmentation)
            packed = _decoding.pack(size, lambda number: _decoding.decode(contents(number), window))
            return (*packed, tf.zeros([size], tf.bool)), labels, weights

        chosen = tf.data.Dataset.range(steps * share.count).map(choose, num_parallel_calls=2)
        return untuned(self._source.decoded(chosen, size, decode).prefetch(2))


def decoded(data: StreamedImageData) -> ImageData:
    """Decode all images of a data set once, each resized to its square as with augmentation "none".

    Raises:
        DataError: the images are too many for the memory, or more outputs than classes are asked for.
    """
    if data.outputs is not None and data.outputs > len(data.class_names):
        raise DataError("images in memory have as many outputs as classes: leave `classes` out.", ("classes",))
    parts = {}
    for split, images in (("train", data.train), ("test", data.test)):
        pixels = np.empty((len(images), data.size, data.size, 3), np.uint8)
        labels = np.empty(len(images), np.int32)
        batches = StreamEvaluationBatches(images, min(64, len(images)), "none", data.size)
        for number, (packed, of_batch, weights) in enumerate(batches.dataset()):
            count = int(np.sum(weights))
            part = slice(number * batches.batch_size, number * batches.batch_size + count)
            pixels[part] = np.round(_decoding.resize(packed[0], packed[1], packed[2], data.size)[:count])
            labels[part] = of_batch[:count]
        parts |= {f"{split}_images": pixels, f"{split}_labels": labels}
    return ImageData(data.name, **parts, class_names=data.class_names, origin=data.origin)


class _Files:
    """Reads `idmatters_tf.data._folders.ImageFiles` in `tf.data`."""

    def __init__(self, files: ImageFiles) -> None:
        with tf.device("CPU:0"):
            # As bytes: a file system's names need not be UTF-8.
            self._names = tf.constant([os.fsencode(name) for name in files.names])
            self._labels = tf.constant(files.labels, tf.int32)
        self._root = os.fsencode(f"{files.root}/")

    def look_up(self, places):
        """What `read` needs of the images at int64 places `(n,)`: two tensors of that shape."""
        return tf.strings.join([self._root, tf.gather(self._names, places)]), tf.gather(self._labels, places)

    def read(self, path, label):
        """One compressed image and its label."""
        return tf.io.read_file(path), label

    def decoded(self, chosen, size, decode):
        """The data set of `decode(contents, labels, *rest)` of batches of `size` of (what `look_up` gave, and the
        rest); `contents(number)` is a compressed image.
        """

        def both(paths, labels, *rest):
            return decode(lambda number: tf.io.read_file(paths[number]), labels, *rest)

        return chosen.map(both, num_parallel_calls=cores())


class _Records:
    """Reads `idmatters_tf.data._records.Records` in `tf.data`; the methods are those of `_Files`."""

    def __init__(self, records: Records) -> None:
        self.look_up, self.read = records.reader()

    def decoded(self, chosen, size, decode):
        def read(path, offset, *rest):
            return *self.read(path, offset), *rest

        def from_memory(contents, *rest):
            return decode(lambda number: contents[number], *rest)

        # In two steps: reading records counts as having state, and under `enable_op_determinism` a map with state is
        # run on one core, which is enough for reading but not for decoding.
        records = chosen.unbatch().map(read, num_parallel_calls=cores()).batch(size, drop_remainder=True)
        return records.map(from_memory, num_parallel_calls=cores())


def source(images: ImageFiles | Records) -> "_Files | _Records":
    """What reads these images."""
    return _Records(images) if isinstance(images, Records) else _Files(images)


def broken(
    images: ImageFiles | Records, places: Iterable[int] | None = None, advance: Callable[[], object] = lambda: None
) -> list[int]:
    """Reads and decodes images, and returns the places of those that cannot be, ascending.

    Args:
        images: as for `StreamTrainBatches`.
        places: which ones; all by default.
        advance: called now and then, about `len(places) / 100` times.
    """
    places = range(len(images)) if places is None else sorted(set(places))
    if not places:
        return []
    reads = source(images)

    def attempt(place):
        contents, _ = reads.read(*(values[0] for values in reads.look_up(place[tf.newaxis])))
        shape = tf.shape(_decoding.decode(contents))
        return tf.stack([place, tf.cast(tf.reduce_min(shape), tf.int64)])

    data = tf.data.Dataset.from_tensor_slices(tf.constant(list(places), tf.int64))
    data = untuned(data.map(attempt, num_parallel_calls=4).ignore_errors())
    good = set()
    for number, (place, _) in enumerate(data.as_numpy_iterator()):
        good.add(int(place))
        if number % 100 == 99:
            advance()
    return [place for place in places if place not in good]


def _replica_batch(batch_size, share):
    if batch_size % share.replicas:
        raise ValueError(
            f"The global batch must be divided evenly by the replicas. Received: batch size {batch_size}, "
            f"{share.replicas} replicas. Choose a multiple of {share.replicas}."
        )
    return batch_size // share.replicas
