"""Corrections of Keras's data adapters on several workers: equal data in an equal order.

Each worker reads all batches and takes its part of each. TensorFlow's default is to assign whole files to workers.
"""

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf._keras_internals.absent import replace_none
from idmatters_tf._keras_internals.corrections import corrects
from idmatters_tf._keras_internals.keras_source import data_adapters, tf_trainer
from idmatters_tf._keras_internals.versions import epoch_of_order_since_3_16
from idmatters_tf._tensorflow_internals.patching import Patch
from idmatters_tf._tensorflow_internals.pipelines import is_dataset, sharding_policy


@dataclasses.dataclass
class SharedOrder:
    """Order of the data of a `fit` on several workers.

    Attributes:
        seed: seed of the order of arrays; None if Keras' order is the same on all workers.
        synchronize: gives the global generators of all workers the state of the chief's.
        check: check(name, batches) raises ValueError if the batches differ between the workers.
    """

    seed: int | None
    synchronize: Callable[[], None]
    check: Callable[[str, Any], None]


# Orders of the running calls of `fit`, the innermost last; None for a model of this process only.
_running: list[SharedOrder | None] = [None]


@contextlib.contextmanager
def use_order(order: SharedOrder | None) -> Iterator[None]:
    """Return a context for a `fit` whose data have an order."""
    _running.append(order)
    try:
        yield
    finally:
        _running.pop()


def is_within_fit() -> bool:
    """Return True within a `fit`, whose callbacks may train other models."""
    return len(_running) > 1


@corrects(tf_trainer.TFEpochIterator, "__init__", "experimental_distribute_dataset(")
def _initialize_epoch_iterator(original, self, distribute_strategy=None, **arguments):
    """Create an iterator that gives all workers the same batches."""
    if not tf_trainer._collective_all_reduce_multi_worker(distribute_strategy):
        original(self, distribute_strategy=distribute_strategy, **arguments)
        return
    order, x = _running[-1], arguments["x"]
    if order is not None and isinstance(x, keras.utils.PyDataset):
        rows = _OrderedBatches(x, self, order, arguments.get("shuffle", False))
        original(self, distribute_strategy=distribute_strategy, **{**arguments, "x": rows, "shuffle": False})
        self.data_adapter.on_epoch_begin = rows.begin_epoch_of(self.data_adapter)
        rows.check()
        return
    original(self, distribute_strategy=distribute_strategy, **{**arguments, "x": _divide_by_examples(x)})
    if order is not None and isinstance(self.data_adapter, data_adapters.GeneratorDataAdapter):
        order.check("the first batches of the generator", self.data_adapter._first_batches)


class _OrderedBatches(keras.utils.PyDataset):
    """Batches of a `PyDataset` in the order that the chief draws.

    Keras draws it in a thread, which may run at any time.
    """

    def __init__(self, data: keras.utils.PyDataset, iterator: Any, order: SharedOrder, shuffle: bool):
        super().__init__(data.workers, data.use_multiprocessing, data.max_queue_size)
        self._data = data
        self._iterator = iterator
        self._order = order
        self._shuffle = shuffle
        self._indices = None

    @property
    def num_batches(self) -> int | None:
        return self._data.num_batches

    def __getitem__(self, index: int) -> Any:
        return self._data[index if self._indices is None else self._indices[index]]

    def __getstate__(self) -> dict[str, Any]:
        # For processes that load batches.
        return {**vars(self), "_iterator": None, "_order": None}

    def begin_epoch_of(self, adapter: data_adapters.PyDatasetAdapter) -> Callable[[], None]:
        """Return the method `on_epoch_begin` of an adapter."""

        def on_epoch_begin():
            self._order.synchronize()
            iterator = self._iterator
            begins_pass = iterator.steps_per_epoch is None or not iterator._steps_seen
            length = self.num_batches
            if self._shuffle and length is not None and (begins_pass or iterator._current_iterator is None):
                self._indices = list(range(length))
                epoch = epoch_of_order_since_3_16(adapter)
                (random if epoch is None else random.Random(epoch)).shuffle(self._indices)
            data_adapters.PyDatasetAdapter.on_epoch_begin(adapter)

        return on_epoch_begin

    def on_epoch_begin(self) -> None:
        self._data.on_epoch_begin()
        if type(self._data).on_epoch_begin is not keras.utils.PyDataset.on_epoch_begin:
            self.check()

    def on_epoch_end(self) -> None:
        self._order.synchronize()
        self._data.on_epoch_end()
        if type(self._data).on_epoch_end is not keras.utils.PyDataset.on_epoch_end:
            self.check()

    def check(self) -> None:
        """Compare a batch with those of the other workers, without a change of the global generators."""
        states = random.getstate(), np.random.get_state()  # noqa: NPY002
        batch = self._data[0]
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        self._order.check(f"batch 0 of {type(self._data).__name__}", batch)


def _divide_by_examples(data):
    """Return a `tf.data.Dataset` with the auto-sharding policy DATA."""
    if not is_dataset(data) or sharding_policy(data) == "DATA":
        return data
    if sharding_policy(data) != "AUTO":
        raise ValueError(
            f"Each worker must read all batches and take its part of each. Received: auto-sharding policy "
            f"{sharding_policy(data)}. Remove it, or use AutoShardPolicy.DATA."
        )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.with_options(options)


@corrects(data_adapters.ArrayDataAdapter, "get_tf_dataset", "def get_tf_dataset(")
def _arrange_arrays(original, self):
    """Return a dataset of shuffled arrays, in a new order for each epoch."""
    order = _running[-1]
    if order is None or order.seed is None or not self._shuffle:
        return replace_none(original(self))
    rng = np.random.default_rng(order.seed)

    @tf.autograph.experimental.do_not_convert
    def shuffle(indices):
        draw = tf.numpy_function(rng.permutation, [tf.size(indices)], tf.int64)
        return tf.gather(indices, tf.ensure_shape(draw, indices.shape))

    with Patch((tf.random, "shuffle", shuffle)):
        return replace_none(original(self))
