"""Updates of optimizers with the sum of the gradients of all replicas."""

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from idmatters_tf._keras_internals.replicas.changes import repairs
from idmatters_tf._keras_internals.replicas.collectives import is_replica, replica

# Each replica is traced in a thread of its own.
_of_replica = threading.local()


@repairs(
    keras.optimizers.Optimizer,
    "_backend_apply_gradients",
    "clips the gradient of each replica before the sum; accumulation and overwriting by averages fail",
)
def _backend_apply_gradients(original, self, grads, trainable_variables):
    """Sum the gradients over the replicas before anything else.

    Keras' `cond` for steps that only accumulate gradients or that overwrite weights by averages fails on a replica.
    """
    if not is_replica():
        return original(self, grads, trainable_variables)
    if not getattr(_of_replica, "has_sums", False):
        grads = _sum(grads)
    steps = self.gradient_accumulation_steps
    if steps:
        replica().merge_call(functools.partial(_accumulate, self), (grads, trainable_variables))
    else:
        _update(self, grads, trainable_variables)
    if self.use_ema:
        self._update_model_variables_moving_average(self._trainable_variables)
        if self.ema_overwrite_frequency:
            replica().merge_call(functools.partial(_overwrite, self))
    return None


def _sum(gradients):
    """Return the sums of gradients over the replicas; None remains None."""
    known = [gradient for gradient in gradients if gradient is not None]
    sums = iter(replica().all_reduce(tf.distribute.ReduceOp.SUM, known) if known else ())
    return [None if gradient is None else next(sums) for gradient in gradients]


def _update(optimizer, gradients, variables):
    """Update variables with the sums of gradients."""
    with _without_sums(optimizer):
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


@repairs(
    keras.optimizers.LossScaleOptimizer,
    "_tf_apply",
    "checks the gradients of the first replica only, so that an overflow on another one is applied",
)
def _tf_apply(original, self, grads, trainable_variables=None):
    """Sum scaled gradients over the replicas before the check that they are finite."""
    if not is_replica():
        return original(self, grads, trainable_variables)
    variables = trainable_variables or self.inner_optimizer._trainable_variables

    def apply(gradients, variables):
        before = getattr(_of_replica, "has_sums", False)
        _of_replica.has_sums = True
        try:
            self._stateful_handle_finite_grads(gradients, variables)
        finally:
            _of_replica.has_sums = before

    def check(strategy, gradients, variables):
        call = strategy.extended.call_for_each_replica
        finite = strategy.experimental_local_results(call(self.check_finite, (gradients,)))[0]
        update = lambda: _nothing(call(apply, (gradients, variables)))  # noqa: E731
        keras.ops.cond(finite, update, self._stateful_handle_non_finite_grads)

    return replica().merge_call(check, (_sum(grads), variables))


# Replicas that are within an update, by the id of the optimizer.
_users: dict[int, int] = {}


@contextlib.contextmanager
def _without_sums(optimizer: Any) -> Iterator[None]:
    """Return a context for one of several threads in which an optimizer does not sum gradients."""
    key = id(optimizer)
    _users[key] = _users.get(key, 0) + 1
    vars(optimizer)["_all_reduce_sum_gradients"] = list
    try:
        yield
    finally:
        _users[key] -= 1
        if not _users[key]:
            del _users[key], vars(optimizer)["_all_reduce_sum_gradients"]
