"""Training data in a `tf.data.Dataset` whose iterator can be saved.

`fit` takes its batches from TensorFlow's own iterator, without Python in between on one device. A checkpoint contains
the iterator's state, as `tf.train.Checkpoint` writes it: positions, generators, and the elements in the buffers of
`shuffle`, `prefetch`, `batch`, and in a `cache()` in memory. A shuffle buffer of 10,000 images is in each checkpoint;
shuffle file names or indices instead, and cache to a file.

The iterator's state alone is not sufficient. A `shuffle` that is reshuffled in each iteration, and a `Dataset.random`
that is rerandomized, draw the seeds of each iteration from a generator outside of the iterator, whose position is in
the state only while an iteration of this operation is alive: not after a `shuffle` has loaded its last element. So a
second iterator over each such operation, never advanced, is saved and restored along with the first one: its state
contains the position of the generator that both share.
"""

import hashlib
import re
import uuid
import weakref
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from idmatters_tf._keras_internals import RunningFit
from idmatters_tf._tensorflow_internals import pipelines
from idmatters_tf.callbacks._sources.base import choose_steps_per_epoch
from idmatters_tf.callbacks._sources.iterators import SavedIterator

# By dataset, the positions of its generators before the first `fit` with it in this process.
_beginnings: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

# By operation that TensorFlow cannot save, the remedy.
_REMEDIES = {
    "PyFunc": "Write the function of `tf.numpy_function` or `from_generator` with TensorFlow's operations, or give "
    "`fit` a `keras.utils.PyDataset`.",
    "EagerPyFunc": "Write the function of `tf.py_function` with TensorFlow's operations, or give `fit` a "
    "`keras.utils.PyDataset`.",
    "DummySeedGenerator": "Leave `shuffle` out of functions of `interleave` and `flat_map`, and shuffle their result.",
}
_RANDOM = (
    "Use `tf.random.stateless_*` with seeds from `tf.data.Dataset.random(seed, rerandomize_each_iteration=True)`, or a "
    "preprocessing layer in the model."
)


class TensorFlowDataset(SavedIterator):
    """Batches of a `tf.data.Dataset`.

    Each epoch is one iteration over the dataset, as in `fit`. With an argument `steps_per_epoch` that differs from the
    number of batches, or where that is unknown or infinite, the epochs are parts of one iteration, and the data begin
    anew where they end.

    Args:
        fit: the running `fit`.

    Raises:
        ValueError: the number of batches is unknown, or the dataset cannot be saved; the operation is named.
    """

    def __init__(self, fit: RunningFit):
        import tensorflow as tf

        dataset: Any = fit.adapter.get_tf_dataset()
        if not isinstance(dataset, tf.data.Dataset):
            raise ValueError(
                f"ExactResume needs a tf.data.Dataset that is not distributed yet: `fit` distributes it. Received: "
                f"{type(dataset).__name__}"
            )
        _check(dataset)
        batches = int(dataset.cardinality())
        # TensorFlow's numbers for an infinite and an unknown length are negative.
        steps = choose_steps_per_epoch(fit, batches if batches >= 0 else None)
        endless = steps != batches
        self._fit = fit
        self._dataset = dataset.repeat() if endless and batches != tf.data.INFINITE_CARDINALITY else dataset
        self._counters = [iter(each) for each in pipelines.operations(dataset) if pipelines.draws_seeds(each)]
        if fit.data in _beginnings:
            _read(_beginnings[fit.data], counters=self._counters)
        elif self._counters:
            _beginnings[fit.data] = _written(counters=self._counters)
        try:
            super().__init__(steps, endless)
        except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError) as error:
            raise ValueError(_explanation(error.message)) from error

    def _begin(self) -> Any:
        return iter(self._dataset)

    def _save(self) -> Any:
        state = {"iterator": _written(iterator=self._iterator)}
        if not self._counters:
            return state
        while True:
            # An iterator that prefetches may begin another iteration over a part of the dataset at any time.
            counters = _written(counters=self._counters)
            state = {"iterator": _written(iterator=self._iterator), "counters": counters}
            if _same(_written(counters=self._counters), counters):
                return state

    def _load(self, state: Any) -> None:
        self._iterator = self._begin()
        _read(state["iterator"], iterator=self._iterator)
        # Last, since TensorFlow draws seeds when it makes the iterator that it restores.
        if self._counters:
            _read(state["counters"], counters=self._counters)

    def _batches(self) -> Iterator[Any]:
        return self._iterator if keras.backend.backend() == "tensorflow" else self._fit.converted(self._iterator)

    def _describe(self, batch: Any) -> tuple[Any, str]:
        import tensorflow as tf

        found = hashlib.sha256()
        for each in tf.nest.flatten(batch, expand_composites=True):
            found.update(tf.io.serialize_tensor(each).numpy())
        return batch, found.hexdigest()

    def close(self) -> None:
        super().close()
        self._counters = []


def _check(dataset):
    """Raise ValueError if a dataset gives other batches in another process, or after its state was restored."""
    if dataset.options().deterministic is False:
        raise ValueError(
            "The order of the tf.data.Dataset is not deterministic: `options.deterministic` is False. Set it to True; "
            "for TensorFlow Datasets, use `read_config=tfds.ReadConfig(shuffle_seed=0)`."
        )
    for operation in pipelines.operations(dataset):
        name = re.sub("^_|Dataset$", "", type(operation).__name__)
        if pipelines.is_unordered(operation):
            raise ValueError(
                f"The order of the tf.data.Dataset is not deterministic: {name} has `deterministic=False`. Leave it "
                "out."
            )
        if pipelines.is_unseeded(operation):
            raise ValueError(
                f"The order of the tf.data.Dataset differs in each process: {name} has no seed. Give it a `seed`, or "
                "call `keras.utils.set_random_seed` before."
            )
        if pipelines.is_memory_cache(operation) and any(map(pipelines.draws_seeds, pipelines.operations(operation))):
            raise ValueError(
                "The tf.data.Dataset caches the order of a `shuffle`, which a resumed process cannot repeat. Call "
                "`cache()` before `shuffle`, or use `shuffle(reshuffle_each_iteration=False)`."
            )


def _explanation(message):
    found = re.search(r"(\w+) is stateful", message)
    if not found:
        return f"TensorFlow cannot save the position in the tf.data.Dataset: {message}. Give `fit` a PyDataset."
    operation = found[1]
    random = _RANDOM if re.search("Random|Rng|Multinomial|TruncatedNormal", operation) else None
    remedy = _REMEDIES.get(operation, random) or "Compute this in the model instead."
    return f"TensorFlow cannot save the position in the tf.data.Dataset: {operation} has state of its own. {remedy}"


def _written(**iterators):
    """Return the files of `tf.train.Checkpoint`, which is written to memory, as arrays of bytes by name."""
    import tensorflow as tf

    folder = f"ram://{uuid.uuid4().hex}"
    try:
        tf.train.Checkpoint(**iterators).write(f"{folder}/state")
        found = {}
        for name in sorted(tf.io.gfile.listdir(folder)):
            with tf.io.gfile.GFile(f"{folder}/{name}", "rb") as file:
                found[name] = np.frombuffer(file.read(), np.uint8)
        return found
    finally:
        tf.io.gfile.rmtree(folder)


def _read(files, **iterators):
    """Restore iterators from the files that `_written` returned."""
    import tensorflow as tf

    folder = f"ram://{uuid.uuid4().hex}"
    try:
        tf.io.gfile.makedirs(folder)
        for name, content in files.items():
            with tf.io.gfile.GFile(f"{folder}/{name}", "wb") as file:
                file.write(content.tobytes())
        tf.train.Checkpoint(**iterators).read(f"{folder}/state").assert_consumed()
    finally:
        tf.io.gfile.rmtree(folder)


def _same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
