"""Data of several replicas: batches without None, and equal data in an equal order on all workers.

Each worker reads all batches and takes its part of each. TensorFlow's default is to assign whole files to workers. The
parts carry checksums of the batch, which the workers compare in each step.
"""

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf._keras_internals.keras_source import data_adapters, tf_trainer
from idmatters_tf._keras_internals.replicas.changes import hook
from idmatters_tf._keras_internals.versions import epoch_of_order_since_3_16
from idmatters_tf._tensorflow_internals.patching import Patch
from idmatters_tf._tensorflow_internals.pipelines import draws_numbers, sharding_policy

# Names of a batch and of the checksums of its tensors in the elements of a dataset of several workers.
BATCH, TAGS = "batch", "checksums of the batch"
# Rows of a tensor from which its checksum is computed, and number of elements of rows that are small.
_ROWS, _SMALL = 8, 64


@dataclasses.dataclass
class SharedOrder:
    """Order of the data of a `fit` on several workers.

    Attributes:
        seed: seed of the order of arrays; None if Keras' order is the same on all workers.
        synchronize: gives the global generators of all workers the state of the chief's.
    """

    seed: int | None
    synchronize: Callable[[], None]


# Orders of the running calls of `fit`, the innermost last; None for a model of this process only.
_running: list[SharedOrder | None] = [None]
# Compares the calls of `evaluate` and `predict` of the workers: check(strategy, name, arguments).
check_call: list[Callable[[Any, str, dict[str, Any]], None]] = []


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


def is_multi_worker(strategy: Any) -> bool:
    """Return True for a strategy of several workers."""
    return bool(tf_trainer._collective_all_reduce_multi_worker(strategy))


@hook(tf_trainer.TFEpochIterator, "__init__", "all workers read the same batches in the same order, without None")
def _initialize_epoch_iterator(original, self, distribute_strategy=None, **arguments):
    strategy: Any = distribute_strategy
    x = arguments["x"]
    order = _running[-1]
    is_single = strategy.num_replicas_in_sync == 1 and order is None
    if is_single or isinstance(x, tf.distribute.DistributedDataset):
        original(self, distribute_strategy=strategy, **arguments)
        return
    if is_multi_worker(strategy) and "class_weight" not in arguments:
        check_call[-1](strategy, "evaluate" if "sample_weight" in arguments else "predict", arguments)
    rows = None
    if order is not None and isinstance(x, keras.utils.PyDataset):
        rows = _Batches(x, self, order, arguments.get("shuffle", False))
        arguments |= {"x": rows, "shuffle": False}
    tf_trainer.EpochIterator.__init__(self, **arguments)
    if rows is not None:
        self.data_adapter.on_epoch_begin = rows.begin_epoch_of(self.data_adapter)
    self._distribute_strategy = strategy
    is_copied = isinstance(self.data_adapter, data_adapters.GeneratorDataAdapter | data_adapters.PyDatasetAdapter)
    self._distributed_dataset = distribute_batches(_dataset_of(self.data_adapter, order), strategy, is_copied)


def _dataset_of(adapter, order):
    """Return the dataset of an adapter. Arrays that it shuffles have a new order in each epoch."""
    is_array = isinstance(adapter, data_adapters.ArrayDataAdapter)
    if order is None or order.seed is None or not is_array or not adapter._shuffle:
        return adapter.get_tf_dataset()
    rng = np.random.default_rng(order.seed)

    @tf.autograph.experimental.do_not_convert
    def shuffle(indices):
        draw = tf.numpy_function(rng.permutation, [tf.size(indices)], tf.int64)
        return tf.gather(indices, tf.ensure_shape(draw, indices.shape))

    with Patch((tf.random, "shuffle", shuffle)):
        return adapter.get_tf_dataset()


def distribute_batches(dataset: Any, strategy: Any, is_copied: bool) -> Any:
    """Return a `tf.data.Dataset` distributed over the replicas of a strategy.

    Args:
        dataset: dataset of global batches. A distributed one is returned unchanged.
        strategy: strategy of `tf.distribute`.
        is_copied: True to copy each batch. TensorFlow shares the memory of arrays that a generator or a `PyDataset`
            returns. Operations on the parts of the replicas then compute in place and overwrite them: with the mean
            squared error, the labels of the user.
    """
    if isinstance(dataset, tf.distribute.DistributedDataset):
        return dataset
    if strategy.num_replicas_in_sync > 1:
        dataset = _replace_none(dataset)
        if is_copied:
            dataset = dataset.map(lambda *batch: keras.tree.map_structure(_copy, batch))
        if is_multi_worker(strategy):
            dataset = _tagged(_divide_by_examples(dataset))
    return strategy.experimental_distribute_dataset(dataset)


# Shape of one example of a part of a batch that is None. Arrays of users have elements.
_ABSENT = (0, 0)


def _replace_none(dataset):
    """Return a dataset with tensors without elements in place of None, since TensorFlow distributes tensors only."""
    spec = dataset.element_spec
    # TensorFlow 2.20 has no public name for the type of None.
    kinds = tf.OptionalSpec, type(tf.type_spec_from_value(None))
    if not any(isinstance(leaf, kinds) for leaf in keras.tree.flatten(spec)):
        return dataset

    def replace(*batch):
        first = next(leaf for leaf in keras.tree.flatten(batch) if isinstance(leaf, tf.Tensor))
        absent = tf.zeros([tf.shape(first)[0], *_ABSENT])
        batch = batch if isinstance(spec, tuple) else batch[0]
        return keras.tree.map_structure(lambda leaf: absent if _is_none(leaf) else leaf, batch)

    return dataset.map(replace)


def restore_none(batch: Any) -> Any:
    """Return a batch, or the types of one, with None in place of tensors without elements."""

    def restore(leaf):
        is_tensor = isinstance(leaf, tf.Tensor | tf.TensorSpec) and leaf.shape.rank == 1 + len(_ABSENT)
        return None if _is_none(leaf) or (is_tensor and tuple(leaf.shape[1:]) == _ABSENT) else leaf

    return keras.tree.map_structure(restore, batch)


def _is_none(leaf):
    return leaf is None or isinstance(leaf, tf.experimental.Optional | tf.OptionalSpec)


def _copy(value):
    return tf.raw_ops.DeepCopy(x=value) if isinstance(value, tf.Tensor) else value


def _divide_by_examples(data):
    """Return a `tf.data.Dataset` with the auto-sharding policy DATA."""
    if sharding_policy(data) == "DATA":
        return data
    if sharding_policy(data) != "AUTO":
        raise ValueError(
            f"Each worker must read all batches and take its part of each. Received: auto-sharding policy "
            f"{sharding_policy(data)}. Remove it, or use AutoShardPolicy.DATA."
        )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.with_options(options)


def _tagged(dataset):
    """Return a dataset whose examples carry the size of their batch and the checksums of its tensors.

    Inputs that a pipeline draws random numbers for may differ between the workers, and have the checksum 0.
    """
    spec, is_random = dataset.element_spec, draws_numbers(dataset)

    @tf.autograph.experimental.do_not_convert
    def tag(*batch):
        batch = batch if isinstance(spec, tuple) else batch[0]
        leaves = keras.tree.flatten(batch)
        inputs = len(keras.tree.flatten(batch[0] if isinstance(batch, tuple) else batch))
        size: Any = next(tf.shape(leaf)[0] for leaf in leaves if isinstance(leaf, tf.Tensor) and len(leaf.shape))
        tags = [0 if is_random and index < inputs else _checksum(leaf) for index, leaf in enumerate(leaves)]
        return {BATCH: batch, TAGS: tf.tile(tf.stack([size, *tags])[None], [size, 1])}

    return dataset.map(tag)


def _checksum(tensor):
    """Return a number for the values of some rows of a tensor."""
    if not isinstance(tensor, tf.Tensor) or not len(tensor.shape) or tensor.dtype in (tf.variant, tf.resource):
        return tf.zeros((), tf.int32)
    size = tf.shape(tensor)[0]
    is_small = tensor.shape[1:].is_fully_defined() and tensor.shape[1:].num_elements() <= _SMALL
    rows = tensor if is_small else tensor[:: tf.maximum(size // _ROWS, 1)]
    number = tf.strings.to_hash_bucket_fast(tf.io.serialize_tensor(rows), 2**31 - 2)
    return 1 + tf.cast(number, tf.int32)


class _Batches(keras.utils.PyDataset):
    """Batches of a `PyDataset` on several workers, in the order that the chief draws.

    Keras draws it in a thread, which may run at any time.
    """

    def __init__(self, data: keras.utils.PyDataset, iterator: Any, order: SharedOrder, shuffle: bool):
        super().__init__(data.workers, data.use_multiprocessing, data.max_queue_size)
        self._data = data
        self._iterator = iterator
        self._order: Any = order
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

    def on_epoch_end(self) -> None:
        self._order.synchronize()
        self._data.on_epoch_end()
