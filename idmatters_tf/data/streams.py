"""Batches of pictures that are read and decoded while training: as `idmatters_tf.data.batches`, from files.

The order and every random choice are functions of (seed, position), so a resumed run begins with the very next picture
and a replica reads its share alone. Pictures come as `decoding.finish` takes them: that is for the devices to do.
"""

import tensorflow as tf

from idmatters_tf.data import decoding
from idmatters_tf.data.batches import ALONE, shuffled

_AUGMENTATION = 3


class StreamTrainBatches:
    """The training batches; the interface is that of `idmatters_tf.data.batches.TrainBatches`, but that
    the pictures of `dataset` are still to be finished.

    Args:
        pictures: `idmatters_tf.data.folders.PictureFiles` or `idmatters_tf.data.records.Records`.
        batch_size: of the global batch.
        seed: a non-negative integer below 2^31.
        augmentation: one of `idmatters_tf.data.decoding.AUGMENTATIONS`.
        size: of the square that the network takes, in pixels.
    """

    def __init__(self, pictures, batch_size, seed=0, augmentation="paper", size=224):
        if batch_size < 1:
            raise ValueError(f"Argument `batch_size` must be positive. Received: batch_size={batch_size}")
        if augmentation not in decoding.AUGMENTATIONS:
            allowed = ", ".join(map(repr, decoding.AUGMENTATIONS))
            raise ValueError(f"Argument `augmentation` must be one of {allowed}. Received: {augmentation!r}")
        self.count, self.batch_size, self.seed = len(pictures), batch_size, seed
        self.augmentation, self.size = augmentation, size
        self._read = reader(pictures)

    def indices(self, positions):
        """The picture at each position of the endless sequence: int64 to int64, of the same shape `(count,)`."""
        return shuffled(positions, self.count, self.seed)

    def batch(self, step, start=0, stop=None):
        """The examples from `start` to `stop` of a step's global batch, finished; see `TrainBatches.batch`."""
        stop = self.batch_size if stop is None else stop
        first = step * self.batch_size
        batches = self._batches(tf.data.Dataset.range(first + start, first + stop), stop - start)
        pictures, labels = batches.get_single_element()
        return decoding.finish(pictures), labels

    def dataset(self, first_step, steps, share=ALONE, stride=1):
        """The batches of `steps` steps, one element for each replica in turn; see `TrainBatches.dataset`."""
        size = _replica_batch(self.batch_size, share)

        def position(number):
            element, example = number // size, number % size
            step = first_step + element // share.count * stride
            return step * self.batch_size + (share.first + element % share.count) * size + example

        return self._batches(tf.data.Dataset.range(steps * share.count * size).map(position), size).prefetch(2)

    def _batches(self, positions, size):
        def read(position):
            return position, *self._read(self.indices(position[tf.newaxis])[0])

        def augment(position, contents, label):
            key = tf.stack([tf.constant((self.seed << 2) + _AUGMENTATION, tf.int64), position])
            return decoding.train_picture(contents, key, self.size, self.augmentation), label

        # Two steps: reading records counts as having state, and under `enable_op_determinism` a map with state is run
        # on one core, which is enough for reading but not for decoding.
        pictures = positions.map(read, num_parallel_calls=tf.data.AUTOTUNE)
        pictures = pictures.map(augment, num_parallel_calls=tf.data.AUTOTUNE)
        return pictures.batch(size, drop_remainder=True)


class StreamEvaluationBatches:
    """Every picture once; the interface is that of `idmatters_tf.data.batches.EvaluationBatches`, but that
    the pictures of `dataset` are still to be finished.

    Args:
        pictures, batch_size, augmentation, size: as for `StreamTrainBatches`.
    """

    def __init__(self, pictures, batch_size, augmentation="paper", size=224):
        self.count, self.batch_size, self.augmentation, self.size = len(pictures), batch_size, augmentation, size
        self._read = reader(pictures)

    @property
    def steps(self):
        """How many global batches hold all pictures."""
        return -(-self.count // self.batch_size)

    def dataset(self, share=ALONE, first=0, steps=None):
        """(images, labels, weights), one element for each replica in turn; see `EvaluationBatches.dataset`."""
        size = _replica_batch(self.batch_size, share)
        steps = self.steps if steps is None else steps

        def read(number):
            element, example = number // size, number % size
            start = (first + element // share.count) * self.batch_size + (share.first + element % share.count) * size
            place = start + example
            return *self._read(tf.minimum(place, self.count - 1)), tf.cast(place < self.count, tf.float32)

        def decode(contents, label, weight):
            return decoding.evaluation_picture(contents, self.size, self.augmentation), label, weight

        pictures = tf.data.Dataset.range(steps * share.count * size).map(read, num_parallel_calls=tf.data.AUTOTUNE)
        pictures = pictures.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
        return pictures.batch(size, drop_remainder=True).prefetch(2)


def reader(pictures):
    """A function from an int64 place to the compressed picture and its int32 label, for `tf.data`."""
    if hasattr(pictures, "reader"):
        return pictures.reader()
    with tf.device("CPU:0"):
        names, labels = tf.constant(pictures.names), tf.constant(pictures.labels, tf.int32)
    root = f"{pictures.root}/"
    return lambda place: (tf.io.read_file(tf.strings.join([root, names[place]])), labels[place])


def broken(pictures, places=None, advance=lambda: None):
    """Reads and decodes pictures, and returns the places of those that cannot be, ascending.

    Args:
        pictures: as for `StreamTrainBatches`.
        places: which ones; all by default.
        advance: called now and then, about `len(places) / 100` times.
    """
    places = range(len(pictures)) if places is None else sorted(set(places))
    if not places:
        return []
    read = reader(pictures)

    def attempt(place):
        shape = tf.shape(decoding.decode(read(place)[0]))
        return tf.stack([place, tf.cast(tf.reduce_min(shape), tf.int64)])

    data = tf.data.Dataset.from_tensor_slices(tf.constant(list(places), tf.int64))
    good = set()
    for number, (place, _) in enumerate(data.map(attempt, num_parallel_calls=4).ignore_errors().as_numpy_iterator()):
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
