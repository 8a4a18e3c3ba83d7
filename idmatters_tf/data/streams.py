"""Batches of images that are read and decoded during training.

Like in `idmatters_tf.data.batches`, order and random choices are functions of (seed, position): a resumed run starts
with the next image, and a replica reads its share only.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from idmatters_tf._arguments import check_choice, positive_integer
from idmatters_tf._environment import cores
from idmatters_tf.data import _decoding
from idmatters_tf.data._folders import ImageFiles
from idmatters_tf.data._pipelines import replica_elements, without_autotuning
from idmatters_tf.data._records import Records
from idmatters_tf.data.imagenet import StreamedImageData
from idmatters_tf.data.images import ImageData
from idmatters_tf.data.protocols import ALONE, Int, Share

# Distinct streams of random numbers.
_ORDER, _FLIPS, _AUGMENTATION = 1, 2, 3


def _shuffle_positions(positions: tf.Tensor, count: int, seed: int) -> tf.Tensor:
    """Return the index of the image at each position of the endless sequence, a permutation for each epoch.

    Args:
        positions: int64, `(n,)`.
        count: number of images.
        seed: non-negative integer below 2^32.

    Returns:
        int64, `(n,)`, in [0, count).
    """
    epochs = positions // count
    seeds = tf.stack([tf.fill(tf.shape(epochs), tf.cast(seed, tf.int64)), epochs], axis=1)
    seeds = tf.cast(tf.concat([seeds, tf.fill([tf.shape(epochs)[0], 1], tf.cast(_ORDER, tf.int64))], 1), tf.uint32)
    # The Python wrapper of this operation does not support a batch of seeds.
    return tf.raw_ops.RandomIndexShuffle(
        index=positions % count,  # pyright: ignore[reportOperatorIssue]
        seed=seeds,
        max_index=tf.fill(tf.shape(positions), tf.cast(count - 1, tf.int64)),
    )


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
        self.count = len(images)
        self.batch_size = batch_size
        self.seed = seed
        self.augmentation = augmentation
        self.size = size
        self.smallest_area = smallest_area
        self._read = _make_reader(images)
        self._batch = tf.function(
            lambda step: self.dataset(step, 1).get_single_element(),
            input_signature=[tf.TensorSpec([], tf.int64)],
            autograph=False,
        )

    def indices(self, positions: tf.Tensor) -> tf.Tensor:
        """Return the index of the image at each position of the endless sequence, int64 `(count,)`."""
        return _shuffle_positions(positions, self.count, self.seed)

    def batch(self, step: Int) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the preprocessed images and labels of a step."""
        return self._batch(tf.cast(step, tf.int64))

    def dataset(self, first_step: Int, steps: int, share: Share = ALONE, stride: int = 1) -> tf.data.Dataset:
        """Return the batches of `steps` steps, with one element for each replica in turn."""
        elements, size = replica_elements(self.batch_size, share, first_step, steps, stride)

        def choose(step, start):
            # For the whole batch: small operations for each image would cost as much as decoding.
            positions = step * self.batch_size + start + tf.range(size, dtype=tf.int64)
            keys = tf.stack([tf.fill([size], tf.constant((self.seed << 2) + _AUGMENTATION, tf.int64)), positions], 1)
            flips = tf.zeros([self.batch_size], tf.int32)
            if self.augmentation != "none":
                key = tf.stack([tf.constant((self.seed << 2) + _FLIPS, tf.int64), step])
                flips = tf.random.stateless_uniform([self.batch_size], key, 0, 2, tf.int32)
            return self.indices(positions), keys, flips[start : start + size]

        def window(key, _):
            if self.augmentation != "standard":
                return None
            return lambda shape: _decoding.random_window(shape, key, self.smallest_area)

        def finish(images, labels, _, flips):
            flipped = tf.where(flips[:, tf.newaxis, tf.newaxis, tf.newaxis] > 0, images[:, :, ::-1], images)
            return tf.image.per_image_standardization(flipped), labels

        chosen = elements.map(choose, num_parallel_calls=2)
        decoded = _decode(self._read, chosen, self.size, window).batch(size, drop_remainder=True)
        return without_autotuning(decoded.map(finish, num_parallel_calls=cores()).prefetch(2))


class StreamEvaluationBatches:
    """Batches that contain every image in files once, without augmentation. Padding of the last batch has weight 0.

    The interface is that of `idmatters_tf.data.batches.EvaluationBatches`. The arguments are those of
    `StreamTrainBatches`.
    """

    def __init__(self, images: ImageFiles | Records, batch_size: int, augmentation: str = "paper", size: int = 224):
        self.count = len(images)
        self.batch_size = batch_size
        self.augmentation = augmentation
        self.size = size
        self._read = _make_reader(images)

    @property
    def steps(self) -> int:
        """Number of global batches that contain all images."""
        return -(-self.count // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        yield from self.dataset().as_numpy_iterator()

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

        def finish(images, labels, weights):
            return tf.image.per_image_standardization(images) if standardized else images, labels, weights

        elements, size = replica_elements(self.batch_size, share, first, self.steps if steps is None else steps)

        @tf.autograph.experimental.do_not_convert
        def choose(step, start):
            positions = step * self.batch_size + start + tf.range(size, dtype=tf.int64)
            indices = tf.minimum(tf.ensure_shape(positions, [size]), self.count - 1)
            return indices, tf.cast(positions < self.count, tf.float32)

        chosen = elements.map(choose)
        window = _decoding.evaluation_window(self.augmentation)
        decoded = _decode(self._read, chosen, self.size, lambda _: window).batch(size, drop_remainder=True)
        return without_autotuning(decoded.map(finish, num_parallel_calls=cores()).prefetch(2))


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


def _make_reader(images):
    """Return a function from the index of an image, int64, to the compressed image and its label."""
    if isinstance(images, Records):
        return _make_record_reader(images)
    with tf.device("CPU:0"):
        # Bytes, because file names may not be UTF-8.
        names = tf.constant([os.fsencode(name) for name in images.names])
        labels = tf.constant(images.labels, tf.int32)
    root = os.fsencode(f"{images.root}/")

    def read(index):
        return tf.io.read_file(tf.strings.join([root, tf.gather(names, index)])), tf.gather(labels, index)

    return read


def _make_record_reader(records):
    with tf.device("CPU:0"):
        paths = tf.constant(records.paths)
        numbers, offsets = tf.constant(records.file_numbers), tf.constant(records.offsets)
    element: dict[str, Any] = {"output_types": [tf.string], "output_shapes": [[]]}
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def read(index):
        path = tf.gather(paths, tf.gather(numbers, index))
        # The public TFRecordDataset has no offsets.
        following = tf.raw_ops.TFRecordDatasetV2(
            filenames=[path], compression_type="", buffer_size=0, byte_offsets=[tf.gather(offsets, index)]
        )
        first = tf.raw_ops.TakeDataset(input_dataset=following, count=1, **element)
        (record,) = tf.raw_ops.DatasetToSingleElement(dataset=first, **element)
        example = tf.io.parse_single_example(record, features)
        return example["image"], tf.cast(example["label"], tf.int32)

    return read


def _decode(read, chosen, size, window):
    """Return the data set of single images, resized to float32 `(size, size, 3)`, with labels and further tensors.

    Args:
        read: function returned by `_make_reader`.
        chosen: data set of batches: indices of images, and further tensors with one entry for each image.
        size: side of the images in pixels.
        window: function from the further tensors of an image to its window, see `_decoding.decode`.
    """

    def load(index, *others):
        return *read(index), *others

    def decode(contents, label, *others):
        return _decoding.decode_and_resize(contents, size, window(*others)), label, *others

    # Reading records is stateful, and `enable_op_determinism` runs a stateful map on one core. That is sufficient for
    # reading, but not for decoding, which therefore is a map of its own.
    return chosen.unbatch().map(load, num_parallel_calls=cores()).map(decode, num_parallel_calls=cores())


def find_broken(
    images: ImageFiles | Records, indices: Iterable[int] | None = None, advance: Callable[[], object] = lambda: None
) -> list[int]:
    """Read and decode images, and return the sorted indices of the images that cannot be decoded.

    Args:
        images: `ImageFiles` or `Records`.
        indices: indices of the images (default: all).
        advance: called after each 100 images that can be decoded.
    """
    indices = list(range(len(images))) if indices is None else sorted(set(indices))
    read = _make_reader(images)

    def attempt(index):
        contents, _ = read(index)
        shape = tf.shape(_decoding.decode(contents))
        return tf.stack([index, tf.cast(tf.reduce_min(shape), tf.int64)])

    data = tf.data.Dataset.from_tensor_slices(tf.constant(indices, tf.int64))
    data = without_autotuning(data.map(attempt, num_parallel_calls=4).ignore_errors())
    good = set()
    for number, (index, _) in enumerate(data.as_numpy_iterator()):
        good.add(int(index))
        if number % 100 == 99:
            advance()
    return [index for index in indices if index not in good]
