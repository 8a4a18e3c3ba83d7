"""Training data in a `tf.data.Dataset` with a serializable iterator.

`fit` reads batches from TensorFlow's iterator, on one device without Python in between. A checkpoint contains the state
of the iterator as written by `tf.train.Checkpoint`: positions, generators, and the elements in the buffers of
`shuffle`, `prefetch`, `batch` and an in-memory `cache()`. A shuffle buffer of 10,000 images is part of each checkpoint.
Shuffle file names or indices instead, and cache to a file.

The state of the iterator is not sufficient. A `shuffle` that reshuffles each iteration, and a `Dataset.random` that is
rerandomized, draw the seeds of each iteration from a generator outside of the iterator. Its position is part of the
state only during an iteration of this operation, not after a `shuffle` has loaded its last element. Therefore a second
iterator over each such operation, which is never advanced, is saved and restored as well. Its state contains the
position of the shared generator.
"""

import contextlib
import re
import uuid
import weakref
from collections.abc import Iterator
from typing import TypeAlias

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf._keras_internals import RunningFit
from idmatters_tf._keras_types import Dataset, Structure
from idmatters_tf._tensorflow_internals import pipelines
from idmatters_tf.callbacks._sources import choose_steps_per_epoch
from idmatters_tf.callbacks._sources.iterators import SavedIterator

# Files of a `tf.train.Checkpoint` as arrays of bytes, by name.
Files: TypeAlias = dict[str, NDArray[np.uint8]]
# Positions of the generators of a dataset before its first `fit` in this process.
_beginnings: weakref.WeakKeyDictionary[Dataset, Files] = weakref.WeakKeyDictionary()


class TensorFlowDataset(SavedIterator):
    """Batches of a `tf.data.Dataset`.

    Each epoch is one iteration over the dataset, as in `fit`. If `steps_per_epoch` differs from the number of batches,
    or if this number is unknown or infinite, the epochs are parts of one iteration over the repeated dataset.

    Raises:
        ValueError: the number of batches is unknown, or an operation of the dataset cannot be saved.
    """

    def __init__(self, fit: RunningFit):
        import tensorflow as tf

        dataset = fit.adapter.get_tf_dataset()
        if not isinstance(dataset, tf.data.Dataset):
            raise ValueError(
                f"ExactResume requires a tf.data.Dataset that is not distributed, since `fit` distributes it. "
                f"Received: {type(dataset).__name__}"
            )
        check(dataset, "training")
        batches = int(dataset.cardinality())
        # A negative number stands for an infinite or unknown length.
        steps = choose_steps_per_epoch(fit, batches if batches >= 0 else None)
        endless = steps != batches
        if pipelines.fills_only_tables(dataset):
            options = tf.data.Options()
            options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
            dataset = dataset.with_options(options)
        self._fit = fit
        self._dataset = dataset.repeat() if endless and batches != tf.data.INFINITE_CARDINALITY else dataset
        self._counters = [iter(part) for part in pipelines.operations(dataset) if pipelines.draws_seeds(part)]
        if fit.data in _beginnings:
            _restore_from_memory(_beginnings[fit.data], counters=self._counters)
        elif self._counters:
            _beginnings[fit.data] = _save_to_memory(counters=self._counters)
        try:
            super().__init__(steps, endless)
        except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError) as error:
            raise ValueError(
                f"TensorFlow cannot save the position in the tf.data.Dataset: {error.message}. Instead of Python "
                f"functions, pass `FunctionBatches(step_to_batch, steps_per_epoch=N)` to `fit`. Instead of operations "
                f"with internal state, use `tf.random.stateless_*` with seeds from `tf.data.Dataset.random(seed, "
                f"rerandomize_each_iteration=True)`, and move augmentation layers into the model. Or pass "
                f"ExactResume(..., replay=True)."
            ) from error

    def _begin(self) -> Iterator[Structure]:
        return iter(self._dataset)

    def _save(self) -> dict[str, Files]:
        state = {"iterator": _save_to_memory(iterator=self._iterator)}
        if not self._counters:
            return state
        while True:
            # A prefetching iterator may begin another iteration over a part of the dataset at any time.
            counters = _save_to_memory(counters=self._counters)
            state = {"iterator": _save_to_memory(iterator=self._iterator), "counters": counters}
            if _are_equal(_save_to_memory(counters=self._counters), counters):
                return state

    def _load(self, state: dict[str, Files]) -> None:
        import tensorflow as tf

        self._iterator = self._begin()
        try:
            _restore_from_memory(state["iterator"], iterator=self._iterator)
            # Last, since TensorFlow draws seeds when it creates the restored iterator.
            if self._counters:
                _restore_from_memory(state["counters"], counters=self._counters)
        except (tf.errors.OpError, AssertionError, KeyError) as error:
            raise ValueError(
                f"The checkpoint is that of another tf.data.Dataset: TensorFlow cannot restore its iterator "
                f"({getattr(error, 'message', error)!s:.200}). Restore the operations of the dataset, or pass another "
                f"folder to ExactResume."
            ) from error

    def _batches(self) -> Iterator[Structure]:
        return self._iterator if keras.backend.backend() == "tensorflow" else self._fit.converted(self._iterator)

    def _prepare(self, batch: Structure) -> Structure:
        return batch

    def close(self) -> None:
        super().close()
        self._counters = []


class ValidationOrder:
    """Order of validation data that a `tf.data.Dataset` shuffles anew for each iteration.

    A checkpoint is never saved within a validation, so that the positions of the generators of seeds are sufficient.
    In-memory caches keep the order of the first validation, which a restarted process draws again.

    Raises:
        ValueError: the order may differ in another process.
    """

    def __init__(self, data: Dataset):
        check(data, "validation")
        self._counters = [iter(part) for part in pipelines.find_shuffles(data)]

    def state(self) -> Files | None:
        """Return the state for a checkpoint."""
        return _save_to_memory(counters=self._counters) if self._counters else None

    def restore(self, state: Files | None) -> None:
        """Restore the result of `state`."""
        if state is not None and self._counters:
            _restore_from_memory(state, counters=self._counters)


def check(dataset: Dataset, use: str) -> None:
    """Raise ValueError if batches may differ in another process or after a restoration, or if the dataset writes files.

    The dataset is not iterated. Its use is "training", "replay" or "validation".
    """
    writing = pipelines.find_writing_operation(dataset)
    if writing is not None:
        if writing.startswith("cache('"):
            remedy = "Fill it before `fit`: `for _ in cached: pass`, after you have removed files of a killed process"
        else:
            remedy = "Write the files before `fit`, with `dataset.save(path)`, and pass `tf.data.Dataset.load(path)`"
        raise ValueError(
            f"The tf.data.Dataset for {use} writes files while it is iterated, by {writing}, which a killed process "
            f"leaves incomplete. {remedy}."
        )
    if dataset.options().deterministic is False:
        raise ValueError(
            f"The order of the tf.data.Dataset for {use} is not deterministic: `options.deterministic` is False. Set "
            f"it to True; for TensorFlow Datasets, use `read_config=tfds.ReadConfig(shuffle_seed=0, "
            f"try_autocache=False)`."
        )
    for operation in pipelines.operations(dataset):
        name = re.sub("^_|Dataset$", "", type(operation).__name__)
        if pipelines.is_unordered(operation):
            raise ValueError(
                f"The order of the tf.data.Dataset for {use} is not deterministic: {name} has `deterministic=False`. "
                f"Remove this argument."
            )
        if pipelines.is_unseeded(operation):
            raise ValueError(
                f"The order of the tf.data.Dataset for {use} differs in each process: {name} has no seed. Pass a "
                f"`seed` to it, or call `keras.utils.set_random_seed` first."
            )
        caches = use == "training" and pipelines.is_memory_cache(operation)
        if caches and any(map(pipelines.draws_seeds, pipelines.operations(operation))):
            raise ValueError(
                "The tf.data.Dataset caches the order of a `shuffle`, which a resumed process cannot repeat. Call "
                "`cache()` before `shuffle`, or use `shuffle(reshuffle_each_iteration=False)`. TensorFlow Datasets "
                "caches small sets unless `read_config=tfds.ReadConfig(try_autocache=False)`."
            )


@contextlib.contextmanager
def _folder_in_memory() -> Iterator[str]:
    import tensorflow as tf

    folder = f"ram://{uuid.uuid4().hex}"
    tf.io.gfile.makedirs(folder)
    try:
        yield folder
    finally:
        tf.io.gfile.rmtree(folder)


def _save_to_memory(**iterators: object) -> Files:
    """Write a `tf.train.Checkpoint` to memory and return its files as arrays of bytes by name."""
    import tensorflow as tf

    with _folder_in_memory() as folder:
        tf.train.Checkpoint(**iterators).write(f"{folder}/state")
        contents = {name: tf.io.read_file(f"{folder}/{name}") for name in sorted(tf.io.gfile.listdir(folder))}
        return {name: np.frombuffer(content.numpy(), np.uint8) for name, content in contents.items()}


def _restore_from_memory(files: Files, **iterators: object) -> None:
    """Restore iterators from the files that `_save_to_memory` returned."""
    import tensorflow as tf

    with _folder_in_memory() as folder:
        for name, content in files.items():
            tf.io.write_file(f"{folder}/{name}", content.tobytes())
        tf.train.Checkpoint(**iterators).read(f"{folder}/state").assert_consumed()


def _are_equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
