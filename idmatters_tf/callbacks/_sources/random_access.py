"""Training data with random access: each batch is a function of its step."""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, cast

import keras
import numpy as np

from idmatters_tf._keras_internals import RunningFit, has_global_seed
from idmatters_tf._keras_internals.random_state import seeded
from idmatters_tf._keras_types import Structure
from idmatters_tf.callbacks._checksums import checksum
from idmatters_tf.callbacks._sources import Source, choose_steps_per_epoch
from idmatters_tf.callbacks.batches import ArrayBatches, Batches, FunctionBatches
from idmatters_tf.distribute.strategies import distribute_dataset

# More batches than any training has. Grain's infinite datasets have about 2^63, divided by the batch size.
_ENDLESS = 2**40


class RandomAccess(Source):
    """Batches that are a function of the step.

    Args:
        batches: the batches, which replace the data of `fit`.
        steps_per_epoch: number of batches in an epoch of the same endless sequence. If None, that of `batches`.
    """

    def __init__(self, batches: Batches, steps_per_epoch: int | None = None):
        if isinstance(batches, (ArrayBatches, PyDatasetBatches)):
            self.order = {"seed": batches.seed, "shuffle": batches.shuffle, "the length of the data": batches.examples}
        if isinstance(batches, PyDatasetBatches) and has_hooks(batches.data):
            self.objects = (batches.data,)
        if steps_per_epoch not in (None, batches.steps_per_epoch):
            batches = _copy_workers(batches, FunctionBatches(batches.batch, steps_per_epoch))
        # A copy, since callbacks may use the object of the user, which has a position of its own.
        self._batches = copy.copy(batches)
        self.steps_per_epoch = batches.steps_per_epoch
        self.first_batch = self._batches.arrays(0)
        self.digest = checksum(self.first_batch)
        if checksum(self._batches.arrays(0)) != self.digest:
            raise ValueError(
                "The batches must be a function of the step, but batch 0 differs between two calls. Draw random "
                "numbers from the step, as in `numpy.random.default_rng((seed, step))`, or in a PyDataset from the "
                "index and an epoch that `on_epoch_end` counts. Or pass ExactResume(..., replay=True)."
            )

    def attach(self, fit: RunningFit) -> None:
        self._batches.seek(0)
        fit.take_batches_of(self._batches)

    def seek(self, epoch: int, offset: int = 0) -> None:
        self._batches.seek(epoch, offset)
        if isinstance(self._batches, PyDatasetBatches) and not offset:
            # Before Keras' workers read batches. An epoch within which training resumes has begun before.
            self._batches.begin()

    def close(self) -> None:
        self._batches.seek(0)


class AnyStepDataset(RandomAccess):
    """Batches of a `TrainBatchSource` on TensorFlow, in `tf.data.Dataset`s that begin at any step.

    There is no Python between the batches, and each replica computes its share. One iterator yields the batches of
    successive epochs.
    """

    # Iterator, and step of its next batch after this epoch.
    _iterator: Iterator[Structure] | None = None
    _next = -1

    def attach(self, fit: RunningFit) -> None:
        self._strategy = fit.strategy
        fit.take_iterators(self._begin, self.steps_per_epoch)

    def seek(self, epoch: int, offset: int = 0) -> None:
        self._begins = epoch * self.steps_per_epoch + offset

    def close(self) -> None:
        self._iterator = None

    def _begin(self) -> Iterator[Structure]:
        if self._iterator is None or self._begins != self._next:
            first = self._begins
            batches: Any = self._batches
            self._iterator = iter(
                distribute_dataset(self._strategy, lambda share: batches.source.dataset(first, _ENDLESS, share))
            )
        self._next = (self._begins // self.steps_per_epoch + 1) * self.steps_per_epoch
        return self._iterator


class PyDatasetBatches(Batches):
    """Batches of a `keras.utils.PyDataset`, with `shuffle` in an order that is a function of (seed, epoch).

    A dataset of infinite length is not shuffled. The hooks of the dataset, `on_epoch_begin` and `on_epoch_end`, are
    called with global generators of Python and NumPy whose state is a function of (seed, epoch), so that they draw the
    same numbers on all workers. `Reached` restores the attributes that they change.
    """

    def __init__(self, data: keras.utils.PyDataset, steps_per_epoch: int, shuffle: bool, seed: int):
        super().__init__(steps_per_epoch)
        self.data = data
        # Keras annotates it as an int.
        self.examples = cast(int | None, data.num_batches)
        self.seed = seed
        self.shuffle = shuffle
        self._indices = None
        if shuffle and self.examples is not None:
            self._indices = ArrayBatches(np.arange(self.examples), batch_size=1, seed=seed)

    def batch(self, step: int) -> Structure:
        if self.examples is None:
            return self.data[step]
        epoch, index = divmod(step, self.examples)
        return self.data[index if self._indices is None else int(self._indices.order(epoch)[index])]

    def begin(self) -> None:
        """Call `on_epoch_begin` of the dataset."""
        with _seeded(self.seed, self._epoch, False):
            self.data.on_epoch_begin()

    def on_epoch_end(self) -> None:
        with _seeded(self.seed, self._epoch, True):
            self.data.on_epoch_end()


def _seeded(*seed: int) -> contextlib.AbstractContextManager[None]:
    return seeded(int(np.random.SeedSequence(seed).generate_state(1)[0]))


def make_source_from_arrays(fit: RunningFit, seed: int) -> Source:
    """Return the source of arrays, in an order that is a function of (seed, epoch) if `fit` shuffles."""
    if not isinstance(fit.shuffle, bool):
        raise ValueError(f"ExactResume requires a boolean `shuffle` in `fit`. Received: shuffle={fit.shuffle!r}")
    arrays, batch_size = fit.arrays()
    batches = ArrayBatches(*arrays, batch_size=batch_size, seed=seed, shuffle=fit.shuffle)
    return RandomAccess(batches, fit.steps_per_epoch)


def make_source_from_py_dataset(fit: RunningFit, seed: int) -> Source:
    """Return the source of a `keras.utils.PyDataset`. If `fit` shuffles, the order is a function of (seed, epoch)."""
    data: keras.utils.PyDataset = fit.data
    length = data.num_batches
    hooked = has_hooks(data)
    if hooked and not has_global_seed():
        raise ValueError(
            f"Keras calls the `on_epoch_end` of {type(data).__name__} once before training, when the global generators "
            f"have no seed. Call `keras.utils.set_random_seed(seed)` before you create the data."
        )
    steps = choose_steps_per_epoch(fit, length)
    if hooked and length not in (None, steps):
        raise ValueError(
            f"{type(data).__name__} changes at the end of its epochs of {length} batches. Received: "
            f"steps_per_epoch={steps} in `fit`. Remove this argument."
        )
    return RandomAccess(_copy_workers(data, PyDatasetBatches(data, steps, bool(fit.shuffle), seed)))


def make_source_from_map_dataset(fit: RunningFit) -> Source:
    """Return the source of a Grain `MapDataset`, whose element `epoch * len + index` is the batch of a step."""
    import grain

    length = len(fit.data) if len(fit.data) < _ENDLESS else None
    batches = FunctionBatches(fit.data.__getitem__, choose_steps_per_epoch(fit, length))
    # The number of threads of Grain's iterator.
    batches.workers = grain.ReadOptions().num_threads
    return RandomAccess(batches)


def _copy_workers(data, batches):
    batches.workers = data.workers
    batches.max_queue_size = data.max_queue_size
    batches.use_multiprocessing = data.use_multiprocessing
    return batches


def has_hooks(data: object) -> bool:
    """Return True for a `keras.utils.PyDataset` that may change at the beginning or end of an epoch."""
    base, kind = keras.utils.PyDataset, type(data)
    return issubclass(kind, base) and (
        kind.on_epoch_begin is not base.on_epoch_begin or kind.on_epoch_end is not base.on_epoch_end
    )
