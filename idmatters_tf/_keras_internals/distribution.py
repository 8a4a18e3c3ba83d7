"""Corrections of Keras's training on several replicas of `tf.distribute`.

Each correction is made only if the function of Keras still contains the defect.
"""

import contextlib
import functools
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
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from idmatters_tf._keras_internals import data_order, normalization, trial_steps
from idmatters_tf._keras_internals.absent import replace_none, replace_none_of_batch, restore_none
from idmatters_tf._keras_internals.normalization import count_replicas, in_step
from idmatters_tf._keras_internals.versions import trainer_until_3_15
from idmatters_tf._patching import Patch

_Trainer: Any = trainer_until_3_15(tf_trainer)
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
        check: called with the model and the arguments of each `fit`, which it may change. `fit` runs in the context
            that it returns.
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
    """`fit` that is checked first."""
    bound = inspect.signature(_originals["fit"]).bind(self, *args, **kwargs)
    bound.apply_defaults()
    with _originals["check"](self, bound.arguments):
        return _originals["fit"](*bound.args, **bound.kwargs)


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
        spec = keras.tree.map_structure(_spec_of_replica, iterator._distributed_dataset.element_spec)
        data_batch = restore_none(spec)
    with self.distribute_strategy.scope():
        self._symbolic_build(data_batch=data_batch)


def _spec_of_replica(spec):
    return getattr(spec, "_value_specs", (spec,))[0]


def _make_function(self, step_function):
    """Return a function for several steps, which are normalized.

    Keras' collective operations in `tf.cond` in `tf.while_loop` fail.
    """
    if self.distribute_strategy.num_replicas_in_sync == 1:
        return _originals["_make_function"](self, step_function)
    normalization.correct_overrides(self)
    is_training = step_function == self.train_step
    kinds = trial_steps.kinds_of_losses(self)
    needs_equal_parts = trial_steps.overrides_step(self, is_training)
    step = normalization.normalized(step_function, kinds, is_training, needs_equal_parts)
    execute = _originals["_make_function"](self, step)
    is_tried = False

    def function(iterator):
        nonlocal is_tried
        needs_trial = not is_tried and trial_steps.needs_trial(self, is_training)
        if self.steps_per_execution == 1 and not needs_trial:
            return execute(iterator)
        batches = _batches(iterator) if isinstance(iterator, tf.distribute.DistributedIterator) else iter(iterator)
        # Keras takes `steps_per_execution` batches of a Python iterator. Without data this raises StopIteration.
        first = next(batches)
        if needs_trial:
            trial_steps.try_step(self, first, is_training)
            is_tried = True
        return execute(itertools.chain([first], batches))

    return function


def _autoconvert_optionals(self, step_function):
    """Return a step that replaces optional values, and tensors without elements in their place, by None."""
    return functools.wraps(step_function)(lambda data: step_function(restore_none(data)))


def _standardize_batch(self, batch):
    """Return a batch of a `PyDataset` without None, which a generator of TensorFlow cannot yield."""
    return replace_none_of_batch(_originals["_standardize_batch"](self, batch))


def _replacing(kind):
    """Return a method that makes the dataset of a data adapter without None."""

    def get_tf_dataset(self):
        data = _originals[kind.__name__](self)
        return replace_none(data) if isinstance(data, tf.data.Dataset) else data

    return get_tf_dataset


def _copying(kind):
    """Return a method that makes the dataset of a data adapter with copies of the arrays of each batch.

    TensorFlow shares the memory of arrays that a generator or a `PyDataset` returns. Operations on the parts of the
    replicas then compute in place and overwrite them: with the mean squared error, the labels of the user.
    """

    def get_tf_dataset(self):
        data = replace_none(_originals[kind.__name__](self))
        return data.map(lambda *batch: keras.tree.map_structure(_copy, batch))

    return get_tf_dataset


def _copy(value):
    return tf.raw_ops.DeepCopy(x=value) if isinstance(value, tf.Tensor) else value


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
    """Sum the gradients over the replicas before anything else. Keras clips the part of each replica before the sum.

    Keras' `cond` for steps that only accumulate gradients or that overwrite weights by averages fails on a replica.
    """
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return _originals["_backend_apply_gradients"](self, grads, trainable_variables)
    grads = [gradient for gradient, _ in self._all_reduce_sum_gradients(zip(grads, trainable_variables, strict=True))]
    steps = self.gradient_accumulation_steps
    if steps:
        replica.merge_call(functools.partial(_accumulate, self), (grads, trainable_variables))
    else:
        _update(self, grads, trainable_variables)
    if self.use_ema:
        self._update_model_variables_moving_average(self._trainable_variables)
        if self.ema_overwrite_frequency:
            replica.merge_call(functools.partial(_overwrite, self))
    return None


def _update(optimizer, gradients, variables):
    """Update variables with the sums of gradients."""
    with _summed():
        gradients = optimizer._clip_gradients(gradients)
        optimizer._apply_weight_decay(variables)
        optimizer._backend_update_step(gradients, variables, optimizer.learning_rate)


def _accumulate(optimizer, strategy, gradients, variables):
    """Update variables in the last of several steps, and add the gradients before."""

    def accumulators(variables):
        return [optimizer._accumulated_gradients[optimizer._get_variable_index(variable)] for variable in variables]

    def update(gradients, variables):
        pairs = zip(gradients, accumulators(variables), strict=True)
        _update(optimizer, [(new + old) / optimizer.gradient_accumulation_steps for new, old in pairs], variables)
        optimizer._backend_reset_gradient_accumulators()

    def add(gradients, variables):
        optimizer._backend_increment_gradient_accumulators(gradients, accumulators(variables))

    call = strategy.extended.call_for_each_replica
    is_last = _is_multiple(optimizer._iterations + 1, optimizer.gradient_accumulation_steps)
    arguments = (gradients, variables)
    keras.ops.cond(is_last, lambda: _nothing(call(update, arguments)), lambda: _nothing(call(add, arguments)))


def _overwrite(optimizer, strategy):
    """Overwrite variables by their averages in some of the steps."""
    is_due = _is_multiple(optimizer.iterations + 1, optimizer.ema_overwrite_frequency)
    overwrite = optimizer._overwrite_model_variables_with_average_value
    keras.ops.cond(is_due, lambda: _nothing(overwrite(optimizer._trainable_variables)), lambda: None)


def _is_multiple(number, factor):
    return keras.ops.equal(number % factor, 0)


def _nothing(_):
    return None


def _tf_apply(self, grads, trainable_variables=None):
    """Sum scaled gradients over the replicas before the check that they are finite, which Keras makes on each."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return _originals["_tf_apply"](self, grads, trainable_variables)
    variables = trainable_variables or self.inner_optimizer._trainable_variables
    pairs = self.inner_optimizer._all_reduce_sum_gradients(zip(grads, variables, strict=True))

    def apply(gradients, variables):
        with _summed():
            self._stateful_handle_finite_grads(gradients, variables)

    def check(strategy, gradients, variables):
        call = strategy.extended.call_for_each_replica
        finite = strategy.experimental_local_results(call(self.check_finite, (gradients,)))[0]
        update = lambda: _nothing(call(apply, (gradients, variables)))  # noqa: E731
        keras.ops.cond(finite, update, self._stateful_handle_non_finite_grads)

    return replica.merge_call(check, ([gradient for gradient, _ in pairs], variables))


@contextlib.contextmanager
def _summed():
    """Return a context for gradients that are sums over the replicas."""
    before = getattr(_of_replica, "has_sums", False)
    _of_replica.has_sums = True
    try:
        yield
    finally:
        _of_replica.has_sums = before


def _all_reduce_sum_gradients(self, grads_and_vars):
    """Sum gradients over the replicas, or compute their mean in a step of `fit`, unless this has been done."""
    if getattr(_of_replica, "has_sums", False):
        return list(grads_and_vars)
    sums = _originals["_all_reduce_sum_gradients"](self, grads_and_vars)
    return [(_divide(gradient, count_replicas()), variable) for gradient, variable in sums] if in_step() else sums


def _divide(gradient, number):
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / number, gradient.indices, gradient.dense_shape)
    return None if gradient is None else gradient / number


# Owner and name of the function, text of the defect in its source, correction.
_CORRECTIONS: tuple[tuple[Any, str, str, Any], ...] = (
    (tf_trainer, "reduce_per_replica", 'strategy.reduce("MEAN", v, axis=0)', _reduce_per_replica),
    (_Trainer, "_maybe_symbolic_build", "maybe_distributed_data_batch = next(it)", _maybe_symbolic_build),
    (_Trainer, "_make_function", "tf.while_loop(", _make_function),
    (SeedGenerator, "next", "new_seed_value = seed_state.value * 1", _next),
    (BaseOptimizer, "_backend_apply_gradients", "self._clip_gradients(grads)", _backend_apply_gradients),
    (keras.optimizers.LossScaleOptimizer, "_tf_apply", "finite_per_replica", _tf_apply),
    (_Optimizer, "_all_reduce_sum_gradients", "tf.distribute.ReduceOp.SUM", _all_reduce_sum_gradients),
    (_Trainer, "_autoconvert_optionals", "tf.experimental.Optional", _autoconvert_optionals),
    (PyDatasetAdapter, "_standardize_batch", "return batch", _standardize_batch),
    (TFDatasetAdapter, "get_tf_dataset", "return self._dataset", _replacing(TFDatasetAdapter)),
    *((kind, "get_tf_dataset", "from_generator", _copying(kind)) for kind in (GeneratorDataAdapter, PyDatasetAdapter)),
    *normalization.CORRECTIONS,
)
