"""Functions of Keras for training, evaluation and prediction on several replicas."""

import contextlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf._keras_internals.replicas import data, losses, optimizers  # noqa: F401 - registers changes
from idmatters_tf._keras_internals.replicas.changes import hook, make_changes, repairs
from idmatters_tf._keras_internals.replicas.collectives import (
    SEVERAL,
    gather,
    is_replica,
    replica,
    stack_parts,
    sum_over_replicas,
    value_of_first,
    within,
)
from idmatters_tf._keras_internals.replicas.data import BATCH, TAGS, is_multi_worker, restore_none
from idmatters_tf._keras_internals.replicas.parts import declarations_of, prepared
from idmatters_tf._keras_internals.versions import SCHEDULE_FREE_SINCE_3_14

# Constant of the golden ratio, which separates the seeds of replicas.
_SEED_OF_REPLICA = 0x9E3779B1
_Check = Callable[[keras.Model, dict[str, Any]], contextlib.AbstractContextManager[Any]]
_checks: list[_Check] = []


def correct_fit(check: _Check, check_call: Callable[[Any, str, dict[str, Any]], None]) -> None:
    """Correct `fit`, `evaluate` and `predict` under strategies with several replicas, until the process ends.

    Args:
        check: called with the model and the arguments of each `fit`, which it may change. `fit` runs in the context
            that it returns.
        check_call: called with the strategy, the name and the arguments of `evaluate` and `predict` on workers.
    """
    _checks[:] = [check]
    data.check_call[:] = [check_call]
    make_changes()


@hook(keras.Model, "fit", "arguments and data are checked before training")
def _fit(original, self, *args, **kwargs):
    bound = inspect.signature(original).bind(self, *args, **kwargs)
    bound.apply_defaults()
    with _checks[0](self, bound.arguments):
        return original(*bound.args, **bound.kwargs)


@repairs(
    keras.Model,
    "_maybe_symbolic_build",
    "averages a batch over the replicas, which fails for parts of different sizes; a generator loses the batch",
    20585,
)
def _maybe_symbolic_build(original, self, iterator=None, data_batch=None):
    """Build the model from the types of the data."""
    if self._distribute_strategy is None:
        return
    if type(self).call is keras.Model.call:
        # A model with steps of its own may have no `call`; it trains its layers.
        with self.distribute_strategy.scope():
            if self.optimizer is not None and not self.optimizer.built:
                self.optimizer.build(self.trainable_variables)
        return
    if iterator is not None:
        spec = keras.tree.map_structure(_spec_of_replica, iterator._distributed_dataset.element_spec)
        data_batch = restore_none(_untagged(spec)[0])
    with self.distribute_strategy.scope():
        self._symbolic_build(data_batch=data_batch)


def _spec_of_replica(spec):
    return getattr(spec, "_value_specs", (spec,))[0]


def _untagged(data):
    """Return the batch and the checksums of a batch of `data.distribute`; None without them."""
    return (data[BATCH], data[TAGS]) if isinstance(data, dict) and TAGS in data else (data, None)


def check_steps(model: keras.Model, names: tuple[str, ...]) -> None:
    """Raise ValueError if a step of the user has not been declared as checked."""
    own: Any = model
    for name in names:
        is_own = name in vars(own) or getattr(type(own), name) is not getattr(keras.Model, name)
        if is_own and not declarations_of(own.distribute_strategy).own_steps:
            raise ValueError(
                f"`{name}` of {model.name!r} is computed with a part of the batch on each replica. Replace its own "
                f"means and sums over examples by `idmatters_tf.distribute.global_mean`, and pass own_steps=True to "
                f"the function that returned the strategy."
            )
    for name, value in vars(own).items():
        if isinstance(value, keras.optimizers.Optimizer) and value is not own.optimizer and not value.built:
            raise ValueError(
                f"The optimizer {name!r} of {model.name!r} must have variables before training on several replicas. "
                f"Call {name}.build(variables) in the scope of the strategy."
            )


@repairs(
    keras.Model,
    "_make_function",
    "fails on workers, and in a loop of several steps; the logs are means of those of the replicas",
    20585,
)
def _make_function(original, self, step_function):
    """Return a function for steps, whose losses, metrics and logs are those of the global batch."""
    strategy = self.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return original(self, step_function)
    is_training = step_function == self.train_step
    check_steps(self, ("train_step" if is_training else "test_step", "compute_metrics"))

    names: list[str] = []

    def on_replica(data):
        data, tags = _untagged(data)
        names[:] = _names(data)
        data = restore_none(data)
        rows = tf.shape(next(leaf for leaf in keras.tree.flatten(data) if leaf is not None))[0]
        parts = _gather_parts(rows, tags)
        share = tf.cast(rows, tf.float32) / tf.cast(tf.reduce_sum(parts[:, 0]), tf.float32)
        # After the last batch, no variable may be assigned, also where its new value does not depend on the data.
        tensors = [tensor for tensor in tf.nest.flatten(data, expand_composites=True) if tensor is not None]
        with tf.control_dependencies([*tensors, *_check_parts(parts, is_training)]), within("part", share):
            logs = step_function(data)
            return {name: _of_first_replica(strategy, name, value) for name, value in (logs or {}).items()}

    @tf.autograph.experimental.do_not_convert
    def on_batch(data):
        with prepared(self):
            logs = strategy.run(on_replica, (data,))
        return keras.tree.map_structure(lambda value: strategy.experimental_local_results(value)[0], logs)

    @tf.autograph.experimental.do_not_convert
    def on_iterator(iterator):
        return on_batch(iterator.get_next())

    if not self.run_eagerly:
        on_batch, on_iterator = (tf.function(function, reduce_retracing=True) for function in (on_batch, on_iterator))

    def function(iterator):
        is_of_tensorflow = isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator)
        logs = None
        for _ in range(self.steps_per_execution):
            try:
                logs = on_iterator(iterator) if is_of_tensorflow else on_batch(next(iterator))
            except (StopIteration, tf.errors.OutOfRangeError):
                if logs is None:
                    raise
                break
            except tf.errors.InvalidArgumentError as error:
                raise _explain(error, strategy, names) from error
        return logs

    return function


# Text of an error message with the sizes and checksums of the parts of a batch.
_PARTS = "parts of a batch:"


def _gather_parts(rows, tags):
    """Return the number of examples and the checksums of each part, of shape (replicas, 1 or more)."""
    numbers = rows[None]
    if tags is not None:
        # Zeros for a part without examples.
        numbers = tf.concat([numbers, tf.reduce_max(tf.pad(tags, [[0, 1], [0, 0]]), 0)], 0)
    return stack_parts(numbers)


def _check_parts(parts, is_training):
    """Return the operation that checks that replicas have examples, and workers the same batch."""
    is_empty = parts[:, :1] == 0
    largest = tf.reduce_max(parts[:, 1:], 0)
    is_right = tf.reduce_all((parts[:, 1:] == largest) | is_empty)
    if is_training:
        is_right &= ~tf.reduce_any(is_empty)
    check = tf.debugging.Assert(is_right, [_PARTS, tf.reshape(parts, [-1])], summarize=-1)
    return [] if check is None else [check]


def _explain(error, strategy, names):
    """Return an error that names the remedy, and the worker, in place of that of a check in a graph.

    Args:
        error: error of TensorFlow. The text of `_check_parts` contains the number of examples, the size of the batch
            and the checksums of its tensors for each replica.
        strategy: strategy of the replicas.
        names: names of the tensors.
    """
    if SEVERAL in str(error):
        return ValueError(SEVERAL + str(error).partition(SEVERAL)[2].partition("]")[0])
    numbers = re.findall(r"\d+", str(error).partition(f"{_PARTS}] [")[2].partition("]")[0])
    if not numbers:
        return error
    parts = np.array(numbers, int).reshape(strategy.num_replicas_in_sync, -1)
    jobs = {} if parts.shape[1] == 1 else strategy.cluster_resolver.cluster_spec().as_dict()
    workers = [f"{job} {task}" for job in ("chief", "worker") for task in range(len(jobs.get(job, ())))]
    devices, rows = len(strategy.extended.worker_devices), parts[:, 0]
    others = np.argwhere((parts[:, 1:] != parts[0, 1:]) & (parts[:, :1] > 0))
    if len(others):
        index, column = others[0]
        what = f"other values of {names[column - 1]} than {workers[0]}"
        if not column:
            what = f"a batch of {parts[index, 1]} examples, where {workers[0]} has {parts[0, 1]}"
        return ValueError(
            f"{workers[index // devices]} has {what}. Give each worker the same data, and random numbers in it the "
            f"same seed."
        )
    if workers and rows.sum() < parts[:, 1].max():
        return ValueError(
            f"The data of {workers[rows.argmin() // devices]} end earlier than those of other workers. Give each "
            f"worker the same data."
        )
    return ValueError(
        f"A training batch of {rows.sum()} examples leaves one of {len(parts)} replicas without any. Use "
        f"batch(..., drop_remainder=True), or remove examples."
    )


def _names(data):
    """Return the names of the tensors of a batch."""
    parts = dict(zip(("x", "y", "sample_weight"), data if isinstance(data, tuple) else (data,), strict=False))
    paths = [path for path, _ in keras.tree.flatten_with_path(parts)]
    return ["".join([first, *(f"[{key!r}]" for key in path)]) for first, *path in paths]


def _of_first_replica(strategy, name, log):
    """Return a log of the first replica, which is that of the global batch, on all workers."""

    def of_first(value):
        if isinstance(value, tf.distribute.DistributedValues):
            raise ValueError(
                f"The log {name!r} is a variable of TensorFlow. Return a tensor or the variable of Keras, such as "
                f"`self.total` in place of `self.total.value`."
            )
        if not isinstance(value, tf.Tensor | keras.Variable):
            return value
        value = tf.convert_to_tensor(value)
        if not is_multi_worker(strategy) or value.dtype == tf.string:
            return value
        return sum_over_replicas(value_of_first(value))

    return keras.tree.map_structure(of_first, log)


@repairs(keras.Model, "make_predict_function", "fails for types that workers cannot gather, and for None", 20585)
def _make_predict_function(original, self, force=False):
    """Make a function that predicts batches of several replicas, with outputs of any type."""
    strategy = self.distribute_strategy
    if strategy.num_replicas_in_sync == 1 or (self.predict_function is not None and not force):
        original(self, force)
        return

    def on_replica(data):
        outputs = self.predict_step(restore_none(_untagged(data)[0]))
        return keras.tree.map_structure(lambda output: _in_order(gather(output), output, strategy), outputs)

    @tf.autograph.experimental.do_not_convert
    def on_batch(data):
        outputs = strategy.run(on_replica, (data,))
        return keras.tree.map_structure(lambda value: strategy.experimental_local_results(value)[0], outputs)

    on_batch = on_batch if self.run_eagerly else tf.function(on_batch, reduce_retracing=True)

    def function(batches):
        outputs = [on_batch(batch) for batch in batches]
        return outputs[0] if len(outputs) == 1 else keras.tree.map_structure(lambda *each: tf.concat(each, 0), *outputs)

    self.predict_function = function


def _in_order(gathered, own, strategy):
    """Return gathered outputs in the order of the examples: those of the first device of each worker come first."""
    devices = len(strategy.extended.worker_devices)
    workers = strategy.num_replicas_in_sync // devices
    if min(devices, workers) == 1:
        return gathered
    sizes = stack_parts(tf.shape(own)[0])
    parts = tf.split(gathered, sizes, num=strategy.num_replicas_in_sync)
    return tf.concat([parts[worker * devices + device] for device in range(devices) for worker in range(workers)], 0)


def check_scope(model: keras.Model, has_workers: bool) -> None:
    """Raise ValueError if model and optimizer do not belong to one strategy.

    Args:
        model: compiled model of `fit`.
        has_workers: True if this process is one of several workers.
    """
    own: Any = model
    strategy = getattr(own, "_distribute_strategy", None)
    # A callback may train a model of its own.
    if strategy is None and has_workers and not data.is_within_fit():
        raise ValueError(
            "The model was built outside of the scope of the strategy, so that this worker would train alone. Build it "
            "in `with strategy.scope():`, or in that of tf.distribute.OneDeviceStrategy to train alone."
        )
    if (
        strategy is not None
        and strategy.num_replicas_in_sync > 1
        and isinstance(own.optimizer, SCHEDULE_FREE_SINCE_3_14)
    ):
        raise ValueError("ScheduleFreeAdamW of Keras computes other weights on several replicas. Use AdamW.")
    owner = getattr(own.optimizer, "_distribution_strategy", None)
    if strategy is not None and owner is not None and owner is not strategy:
        raise ValueError(
            "The optimizer was created outside of the scope of the strategy. Create it and call `compile` in `with "
            "strategy.scope():`."
        )


@repairs(keras.random.SeedGenerator, "next", "returns the same seed on all replicas")
def _next(original, self, ordered=True):
    """Return the next seed of a generator. The first replica has the seeds of a single device."""
    seed = original(self, ordered)
    if not is_replica() or not tf.is_tensor(seed):
        return seed
    index = tf.cast(replica().replica_id_in_sync_group, seed.dtype)
    return seed + tf.stack([index * tf.cast(_SEED_OF_REPLICA, seed.dtype), tf.zeros((), seed.dtype)])
