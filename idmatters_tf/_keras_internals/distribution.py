"""Corrections of Keras 3.15's training on several replicas of `tf.distribute`.

Each correction is made only if the function of Keras still contains the defect.
"""

import contextlib
import inspect
import itertools
import threading
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import optimizer as tf_optimizer
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.random.seed_generator import SeedGenerator
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

from idmatters_tf._keras_internals import data_order
from idmatters_tf._patching import Patch

_Trainer: Any = tf_trainer.TensorFlowTrainer
_Optimizer: Any = tf_optimizer.TFOptimizer
_EpochIterator: Any = tf_trainer.TFEpochIterator
# Constant of the golden ratio, which separates the seeds of replicas.
_SEED_OF_REPLICA = 0x9E3779B1
# Each replica is traced in a thread of its own.
_of_replica = threading.local()
_originals: dict[str, Any] = {}


def correct_fit(check: Callable[[keras.Model, dict[str, Any]], contextlib.AbstractContextManager[Any]]) -> None:
    """Correct `fit`, `evaluate` and `predict` under strategies with several replicas, until the process ends.

    Args:
        check: called with the model and the arguments of each `fit` on several replicas. `fit` runs in the context that
            it returns.
    """
    if _originals:
        return
    _originals["fit"] = _Trainer.fit
    _originals["check"] = check
    replacements: list[tuple[Any, str, Any]] = [
        (_Trainer, "fit", _fit),
        (_EpochIterator, "__init__", data_order.make_epoch_iterator(_EpochIterator.__init__)),
        (ArrayDataAdapter, "get_tf_dataset", data_order.arrange_arrays(ArrayDataAdapter.get_tf_dataset)),
    ]
    for owner, name, defect, correction in _CORRECTIONS:
        original = getattr(owner, name)
        if defect in inspect.getsource(original):
            _originals[owner.__name__ if name == "get_tf_dataset" else name] = original
            replacements.append((owner, name, correction))
    Patch(*replacements).__enter__()


def _fit(self, *args, **kwargs):
    """`fit` that first checks what differs on several replicas."""
    if self.distribute_strategy.num_replicas_in_sync > 1:
        bound = inspect.signature(_originals["fit"]).bind(self, *args, **kwargs)
        bound.apply_defaults()
        with _originals["check"](self, bound.arguments):
            return _originals["fit"](self, *args, **kwargs)
    # A callback may train a model of this process only.
    with data_order.use_order(None):
        return _originals["fit"](self, *args, **kwargs)


def _reduce_per_replica(values, strategy, reduction):
    """Reduce results of replicas. Keras passes axis=0 for the mean over workers, which fails for scalars."""
    if reduction in ("auto", "mean") and tf_trainer._collective_all_reduce_multi_worker(strategy):
        return keras.tree.map_structure(lambda value: strategy.reduce("MEAN", value, axis=None), values)
    return _originals["reduce_per_replica"](values, strategy, reduction)


def _maybe_symbolic_build(self, iterator=None, data_batch=None):
    """Build the model from the types of the data.

    Keras takes a batch and averages it over the replicas. This fails for parts of different sizes, and a generator
    loses the batch.
    """
    if self._distribute_strategy is None:
        return
    if iterator is not None:
        data_batch = keras.tree.map_structure(_spec_of_replica, iterator._distributed_dataset.element_spec)
    with self.distribute_strategy.scope():
        self._symbolic_build(data_batch=data_batch)


def _spec_of_replica(spec):
    spec = getattr(spec, "_value_specs", (spec,))[0]
    return None if isinstance(spec, tf.OptionalSpec) else spec


def _make_function(self, step_function):
    """Return a function for several steps. Keras' collective operations in `tf.cond` in `tf.while_loop` fail."""
    if self.distribute_strategy.num_replicas_in_sync > 1 and step_function == self.train_step:
        step_function = _check_not_empty(step_function)
    execute = _originals["_make_function"](self, step_function)

    def function(iterator):
        several = self.steps_per_execution > 1 and self.distribute_strategy.num_replicas_in_sync > 1
        if not several or not isinstance(iterator, tf.distribute.DistributedIterator):
            return execute(iterator)
        batches = _batches(iterator)
        # Keras takes `steps_per_execution` batches of a Python iterator. Without data this raises StopIteration.
        return execute(itertools.chain([next(batches)], batches))

    return function


def _copying(kind):
    """Return a method that makes the dataset of a data adapter with copies of the arrays of each batch.

    TensorFlow shares the memory of arrays that a generator or a `PyDataset` returns. Operations on the parts of the
    replicas then compute in place and overwrite them: with the mean squared error, the labels of the user.
    """

    def get_tf_dataset(self):
        data = _originals[kind.__name__](self)
        return data.map(lambda *batch: keras.tree.map_structure(_copy, batch))

    return get_tf_dataset


def _copy(value):
    return tf.raw_ops.DeepCopy(x=value) if isinstance(value, tf.Tensor) else value


def _check_not_empty(train_step):
    def step(data):
        examples = tf.shape(next(leaf for leaf in keras.tree.flatten(data) if leaf is not None))[0]
        message = "A training batch has fewer examples than there are replicas. Use batches of a multiple of them."
        tf.debugging.assert_positive(examples, message)
        return train_step(data)

    return step


def _batches(iterator):
    while (batch := iterator.get_next_as_optional()).has_value():
        yield batch.get_value()


def _next(self, ordered=True):
    """Return the next seed of a generator. Keras returns the same seed on all replicas."""
    seed = _originals["next"](self, ordered)
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1 or not tf.is_tensor(seed):
        return seed
    # The first replica has the seeds of a single device.
    index = tf.cast(replica.replica_id_in_sync_group, seed.dtype)
    return seed + tf.stack([index * tf.cast(_SEED_OF_REPLICA, seed.dtype), tf.zeros((), seed.dtype)])


def _backend_apply_gradients(self, grads, trainable_variables):
    """Sum the gradients over the replicas before anything else. Keras clips the part of each replica before the sum."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return _originals["_backend_apply_gradients"](self, grads, trainable_variables)
    pairs = _originals["_all_reduce_sum_gradients"](self, zip(grads, trainable_variables, strict=True))
    _of_replica.has_sums = True
    try:
        return _originals["_backend_apply_gradients"](self, [gradient for gradient, _ in pairs], trainable_variables)
    finally:
        _of_replica.has_sums = False


def _all_reduce_sum_gradients(self, grads_and_vars):
    """Sum gradients over the replicas, unless `_backend_apply_gradients` has done so."""
    if getattr(_of_replica, "has_sums", False):
        return list(grads_and_vars)
    return _originals["_all_reduce_sum_gradients"](self, grads_and_vars)


# Owner and name of the function, text of the defect in its source, correction.
_CORRECTIONS: tuple[tuple[Any, str, str, Any], ...] = (
    (tf_trainer, "reduce_per_replica", 'strategy.reduce("MEAN", v, axis=0)', _reduce_per_replica),
    (_Trainer, "_maybe_symbolic_build", "maybe_distributed_data_batch = next(it)", _maybe_symbolic_build),
    (_Trainer, "_make_function", "tf.while_loop(", _make_function),
    (SeedGenerator, "next", "new_seed_value = seed_state.value * 1", _next),
    (BaseOptimizer, "_backend_apply_gradients", "self._clip_gradients(grads)", _backend_apply_gradients),
    (_Optimizer, "_all_reduce_sum_gradients", "tf.distribute.ReduceOp.SUM", _all_reduce_sum_gradients),
    *((kind, "get_tf_dataset", "from_generator", _copying(kind)) for kind in (GeneratorDataAdapter, PyDatasetAdapter)),
)
