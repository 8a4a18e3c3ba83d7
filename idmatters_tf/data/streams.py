"""Pipelines of tf.data: batches of images that are read and decoded during training, and shares of replicas.

Like in `idmatters_tf.data.batches`, order and random choices are functions of (seed, position): a resumed run starts
with the next image, and a replica reads its share only.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from idmatters_tf._arguments import check_choice, positive_integer
from idmatters_tf._environment import cores
from idmatters_tf._keras_types import Dataset
from idmatters_tf._tensorflow_internals.pipelines import without_autotuning
from idmatters_tf.data import _decoding
from idmatters_tf.data._folders import ImageFiles
from idmatters_tf.data.imagenet import StreamedImageData
from idmatters_tf.data.images import ImageData
from idmatters_tf.data.protocols import ALONE, EvaluationBatchSource, Int, Share, TrainBatchSource, WeightedBatch

# Distinct streams of random numbers.
_ORDER, _FLIPS, _AUGMENTATION = 1, 2, 3

# Maps (step, start, stop) to arrays of `stop - start` examples.
PureBatch: TypeAlias = Callable[[int, int, int], tuple[NDArray[np.generic], ...]]


class StreamTrainBatches(TrainBatchSource):
    """Training batches of images in files.

    Args:
        images: `ImageFiles`.
        batch_size: size of the global batch.
        seed: non-negative integer below 2^31.
        augmentation: "paper", "standard" or "none", see `idmatters_tf.data._decoding`.
        size: side of the images for the network in pixels.
        smallest_area: smallest fraction of the area of an image that "standard" crops, in (0, 1].
    """

    def __init__(
        self,
        images: ImageFiles,
        batch_size: int,
        seed: int = 0,
        augmentation: str = "paper",
        size: int = 224,
        smallest_area: float = _decoding.SMALLEST_AREA,
    ):
        self.batch_size = positive_integer("batch_size", batch_size)
        self.count, self.seed, self.size, self.smallest_area = len(images), seed, size, smallest_area
        self.augmentation = check_choice("augmentation", augmentation, _decoding.AUGMENTATIONS)
        self._read = _make_reader(images)
        self._batch = tf.function(
            lambda step: self.dataset(step, 1).get_single_element(),
            input_signature=[tf.TensorSpec([], tf.int64)],
            autograph=False,
        )

    def indices(self, positions: tf.Tensor) -> tf.Tensor:
        """Return the index of the image at each position of the endless sequence, a permutation for each epoch.

        Args:
            positions: int64, `(n,)`.

        Returns:
            int64, `(n,)`, in [0, count).
        """
        epochs = positions // self.count
        numbers = self.seed, _ORDER, self.count - 1
        seed, order, last = (tf.fill(tf.shape(epochs), tf.constant(number, tf.int64)) for number in numbers)
        # The Python wrapper of this operation does not support a batch of seeds.
        return tf.raw_ops.RandomIndexShuffle(
            index=positions % self.count,  # pyright: ignore[reportOperatorIssue]
            seed=tf.cast(tf.stack([seed, epochs, order], axis=1), tf.uint32),
            max_index=last,
        )

    def batch(self, step: Int) -> tuple[tf.Tensor, tf.Tensor]:
        return self._batch(tf.cast(step, tf.int64))

    def dataset(self, first_step: Int, steps: int, share: Share = ALONE, stride: int = 1) -> Dataset:
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

        return _decode(self._read, elements.map(choose, num_parallel_calls=2), size, self.size, window, finish)


class StreamEvaluationBatches(EvaluationBatchSource):
    """Evaluation batches of images in files, with the arguments of `StreamTrainBatches`."""

    def __init__(self, images: ImageFiles, batch_size: int, augmentation: str = "paper", size: int = 224):
        self.count, self.batch_size, self.size, self.augmentation = len(images), batch_size, size, augmentation
        self._read = _make_reader(images)

    @property
    def steps(self) -> int:
        return -(-self.count // self.batch_size)

    def __iter__(self) -> Iterator[WeightedBatch]:
        for images, labels, weights in self.dataset():
            yield images.numpy(), labels.numpy(), weights.numpy()

    def dataset(self, share: Share = ALONE, standardized: bool = True) -> Dataset:
        """Return the batches, see `EvaluationBatchSource`. If `standardized` is False, images are in 0..255."""
        elements, size = replica_elements(self.batch_size, share, 0, self.steps)
        window = _decoding.evaluation_window(self.augmentation)

        @tf.autograph.experimental.do_not_convert
        def choose(step, start):
            positions = step * self.batch_size + start + tf.range(size, dtype=tf.int64)
            indices = tf.minimum(tf.ensure_shape(positions, [size]), self.count - 1)
            return indices, tf.cast(positions < self.count, tf.float32)

        def finish(images, labels, weights):
            return tf.image.per_image_standardization(images) if standardized else images, labels, weights

        return _decode(self._read, elements.map(choose), size, self.size, lambda _: window, finish)


def replica_elements(
    batch_size: int, share: Share, first_step: Int, steps: int, stride: int = 1
) -> tuple[Dataset, int]:
    """Return a data set of (step, first example in the global batch) and the number of examples of each element.

    There is one element for each replica in turn. Raises ValueError if the replicas do not divide the batch size.
    """
    if batch_size % share.replicas:
        raise ValueError(
            f"The global batch size must be a multiple of {share.replicas}, the number of replicas. "
            f"Received: {batch_size}"
        )
    size = batch_size // share.replicas

    @tf.autograph.experimental.do_not_convert
    def element(number):
        return first_step + number // share.count * stride, (share.first + number % share.count) * size

    return tf.data.Dataset.range(steps * share.count).map(element), size


def computed_batches(
    batch: PureBatch, batch_size: int, share: Share, first_step: Int, steps: int, stride: int = 1
) -> Dataset:
    """Return the batches of a pure function as a data set; for the arguments see `TrainBatchSource.dataset`."""
    elements, size = replica_elements(batch_size, share, first_step, steps, stride)
    example = batch(0, 0, 1)

    def compute(step, start):
        return batch(int(step), int(start), int(start) + size)

    @tf.autograph.experimental.do_not_convert
    def arrays(step, start):
        # `enable_op_determinism` runs a stateful map on one core.
        computed = tf.numpy_function(compute, [step, start], [array.dtype for array in example], stateful=False)
        shapes = [(size, *array.shape[1:]) for array in example]
        return tuple(tf.ensure_shape(array, shape) for array, shape in zip(computed, shapes, strict=True))

    return without_autotuning(elements.map(arrays, num_parallel_calls=2, deterministic=True).prefetch(4))


def decode_all(data: StreamedImageData) -> ImageData:
    """Decode all images of a data set, resized as with augmentation "none"."""

    def decode(files: ImageFiles) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
        pixels = np.empty((len(files), data.size, data.size, 3), np.uint8)
        labels = np.empty(len(files), np.int32)
        batches = StreamEvaluationBatches(files, min(64, len(files)), "none", data.size)
        for number, (images, batch_labels, weights) in enumerate(batches.dataset(standardized=False)):
            count = int(np.sum(weights))
            part = slice(number * batches.batch_size, number * batches.batch_size + count)
            pixels[part], labels[part] = np.round(images[:count]), batch_labels[:count]
        return pixels, labels

    return ImageData(data.name, *decode(data.train), *decode(data.test), data.class_names, data.origin)


def _make_reader(images):
    """Return a function from the index of an image, int64, to the compressed image and its label."""
    root = os.fsencode(f"{images.root}/")
    # Bytes, because file names may not be UTF-8.
    names = [root + os.fsencode(name) for name in images.names]
    with tf.device("CPU:0"):
        paths, labels = tf.constant(names), tf.constant(images.labels, tf.int32)
    return lambda index: (tf.io.read_file(tf.gather(paths, index)), tf.gather(labels, index))


def _decode(read, chosen, batch_size, size, window, finish):
    """Return a data set of batches of images of one size.

    Args:
        read: function returned by `_make_reader`.
        chosen: data set of batches: indices of images, and further tensors with one entry for each image.
        batch_size: number of images in a batch.
        size: side of the images in pixels.
        window: function from the further tensors of an image to its window, see `_decoding.decode`.
        finish: function of a batch: images, float32 `(batch, size, size, 3)`, labels and the further tensors.
    """

    def decode(index, *others):
        contents, label = read(index)
        return _decoding.decode_and_resize(contents, size, window(*others)), label, *others

    decoded = chosen.unbatch().map(decode, num_parallel_calls=cores()).batch(batch_size, drop_remainder=True)
    return without_autotuning(decoded.map(finish, num_parallel_calls=cores()).prefetch(2))


def find_broken(images: ImageFiles, indices: Iterable[int] | None = None) -> list[int]:
    """Read and decode images, by default all, and return the sorted indices of those that cannot be decoded."""
    indices = list(range(len(images))) if indices is None else sorted(set(indices))
    read = _make_reader(images)

    def attempt(index):
        contents, _ = read(index)
        shape = tf.shape(_decoding.decode(contents))
        return tf.stack([index, tf.cast(tf.reduce_min(shape), tf.int64)])

    data = tf.data.Dataset.from_tensor_slices(tf.constant(indices, tf.int64))
    data = without_autotuning(data.map(attempt, num_parallel_calls=4).ignore_errors())
    good = {int(index) for index, _ in data.as_numpy_iterator()}
    return [index for index in indices if index not in good]
