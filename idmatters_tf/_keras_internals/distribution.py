"""Corrections of Keras' training on several replicas of `tf.distribute`.

`corrections` makes them, and those of `data_order` and `normalization`.
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

from idmatters_tf._keras_internals import data_order, normalization, trial_steps  # noqa: F401 - registers corrections
from idmatters_tf._keras_internals.absent import replace_none, replace_none_of_batch, restore_none
from idmatters_tf._keras_internals.corrections import correct_keras, corrects
from idmatters_tf._keras_internals.keras_source import data_adapters, tf_trainer
from idmatters_tf._keras_internals.normalization import count_replicas, in_step

# Constant of the golden ratio, which separates the seeds of replicas.
_SEED_OF_REPLICA = 0x9E3779B1
# Each replica is traced in a thread of its own.
_of_replica = threading.local()
_Check = Callable[[keras.Model, dict[str, Any]], contextlib.AbstractContextManager[Any]]
_checks: list[_Check] = []


def correct_fit(check: _Check) -> None:
    """Correct `fit`, `evaluate` and `predict` under strategies with several replicas, until the process ends.

    Args:
        check: called with the model and the arguments of each `fit`, which it may change. `fit` runs in the context
            that it returns.
    """
    _checks[:] = [check]
    correct_keras()


@corrects(keras.Model, "fit", "def fit(")
def _fit(original, self, *args, **kwargs):
    """`fit` that is checked first."""
    bound = inspect.signature(original).bind(self, *args, **kwargs)
    bound.apply_defaults()
    with _checks[0](self, bound.arguments):
        return original(*bound.args, **bound.kwargs)


@corrects(tf_trainer, "reduce_per_replica", 'strategy.reduce("MEAN", v, axis=0)')
def _reduce_per_replica(original, values, strategy, reduction):
    """Reduce results of replicas. Keras passes axis=0 for the mean over workers, which fails for scalars."""
    if reduction in ("auto", "mean") and tf_trainer._collective_all_reduce_multi_worker(strategy):
        return keras.tree.map_structure(lambda value: strategy.reduce("MEAN", value, axis=None), values)
    return original(values, strategy, reduction)


@corrects(keras.Model, "_maybe_symbolic_build", "maybe_distributed_data_batch = next(it)")
def _maybe_symbolic_build(original, self, iterator=None, data_batch=None):
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


@corrects(keras.Model, "_make_function", "tf.while_loop(")
def _make_function(original, self, step_function):
    """Return a function for several steps, which are normalized.

    Keras' collective operations in `tf.cond` in `tf.while_loop` fail.
    """
    if self.distribute_strategy.num_replicas_in_sync == 1:
        return original(self, step_function)
    normalization.correct_overrides(self)
    is_training = step_function == self.train_step
    kinds = trial_steps.kinds_of_losses(self)
    needs_equal_parts = trial_steps.overrides_step(self, is_training)
    step = normalization.normalized(step_function, kinds, is_training, needs_equal_parts)
    execute = original(self, step)
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


@corrects(keras.Model, "_autoconvert_optionals", "tf.experimental.Optional")
def _autoconvert_optionals(original, self, step_function):
    """Return a step that replaces optional values, and tensors without elements in their place, by None."""
    return functools.wraps(step_function)(lambda data: step_function(restore_none(data)))


@corrects(data_adapters.PyDatasetAdapter, "_standardize_batch", "return batch")
def _standardize_batch(original, self, batch):
    """Return a batch of a `PyDataset` without None, which a generator of TensorFlow cannot yield."""
    return replace_none_of_batch(original(self, batch))


@corrects(data_adapters.TFDatasetAdapter, "get_tf_dataset", "return self._dataset")
def _get_dataset(original, self):
    """Return the dataset without None, unless it is distributed."""
    data = original(self)
    return replace_none(data) if isinstance(data, tf.data.Dataset) else data


@corrects(data_adapters.GeneratorDataAdapter, "get_tf_dataset", "from_generator")
@corrects(data_adapters.PyDatasetAdapter, "get_tf_dataset", "from_generator")
def _copy_batches(original, self):
    """Return a dataset of copies of the arrays of each batch.

    TensorFlow shares the memory of arrays that a generator or a `PyDataset` returns. Operations on the parts of the
    replicas then compute in place and overwrite them: with the mean squared error, the labels of the user.
    """
    return replace_none(original(self)).map(lambda *batch: keras.tree.map_structure(_copy, batch))


def _copy(value):
    return tf.raw_ops.DeepCopy(x=value) if isinstance(value, tf.Tensor) else value


def _batches(iterator):
    while (batch := iterator.get_next_as_optional()).has_value():
        yield batch.get_value()


@corrects(keras.random.SeedGenerator, "next", "new_seed_value = seed_state.value * 1")
def _next(original, self, ordered=True):
    """Return the next seed of a generator. Keras returns the same seed on all replicas."""
    seed = original(self, ordered)
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1 or not tf.is_tensor(seed):
        return seed
    # The first replica has the seeds of a single device.
    index = tf.cast(replica.replica_id_in_sync_group, seed.dtype)
    return seed + tf.stack([index * tf.cast(_SEED_OF_REPLICA, seed.dtype), tf.zeros((), seed.dtype)])


@corrects(keras.optimizers.Optimizer, "_backend_apply_gradients", "self._clip_gradients(grads)")
def _backend_apply_gradients(original, self, grads, trainable_variables):
    """Sum the gradients over the replicas before anything else. Keras clips the part of each replica before the sum.

    Keras' `cond` for steps that only accumulate gradients or that overwrite weights by averages fails on a replica.
    """
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return original(self, grads, trainable_variables)
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


@corrects(keras.optimizers.LossScaleOptimizer, "_tf_apply", "finite_per_replica")
def _tf_apply(original, self, grads, trainable_variables=None):
    """Sum scaled gradients over the replicas before the check that they are finite, which Keras makes on each."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return original(self, grads, trainable_variables)
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


@corrects(keras.optimizers.Optimizer, "_all_reduce_sum_gradients", "tf.distribute.ReduceOp.SUM")
def _all_reduce_sum_gradients(original, self, grads_and_vars):
    """Sum gradients over the replicas, or compute their mean in a step of `fit`, unless this has been done."""
    if getattr(_of_replica, "has_sums", False):
        return list(grads_and_vars)
    sums = original(self, grads_and_vars)
    return [(_divide(gradient, count_replicas()), variable) for gradient, variable in sums] if in_step() else sums


def _divide(gradient, number):
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / number, gradient.indices, gradient.dense_shape)
    return None if gradient is None else gradient / number
