"""Normalization of losses, gradients and metrics of Keras on several replicas of `tf.distribute`.

A loss is a sum of terms divided by the number of examples, of unmasked elements, or by the sum of the weights. Keras
divides on each replica by that replica's own divisor. Here the mean over the replicas, of losses and of gradients, is
that of the global batch:

- The divisor of a loss of Keras is the sum over the replicas, and the sum of the terms is multiplied by their number.
- Functions and classes of the user, and losses that couple the examples, are called on the gathered global batch, the
  same on each replica: losses, `compute_loss`, metrics.
- Losses that layers add are multiplied by factors that depend on their kinds, see `trial_steps`.

A mean over the examples of a replica in a user's `train_step` needs no correction for parts of equal sizes.
"""

import contextlib
import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf._keras_internals.absent import restore_none
from idmatters_tf._keras_internals.corrections import corrects
from idmatters_tf._keras_internals.graphs import get_mask, set_mask
from idmatters_tf._keras_internals.keras_source import LossFunctionWrapper, loss_functions
from idmatters_tf._keras_internals.losses import couples_examples, overrides_compute_loss
from idmatters_tf._keras_internals.versions import MULTI_OPTIMIZERS_SINCE_3_15


class Recorder:
    """Losses that layers add and gradients that optimizers apply in a trial, as pairs (key, tensor)."""

    def __init__(self) -> None:
        self.losses: list[tuple[Any, Any]] = []
        self.gradients: list[tuple[str, Any]] = []


class _Step(threading.local):
    """Step that a replica computes. Each replica is traced in a thread of its own.

    Attributes:
        batch: "part" while a replica computes its part, "global" while it computes something of the global batch for
            this part, "whole" while it computes a step of the global batch in a trial, None outside of steps on several
            replicas.
        kinds: kind of each loss that a layer adds, by the id of the layer and the index.
        share: number of examples of the part, divided by the mean over the replicas.
        losses: losses added by the id of the layer. Those of a layer itself are common to all threads.
        recorder: records of a trial.
    """

    batch: str | None = None
    kinds: Mapping[Any, str] = types.MappingProxyType({})
    share: Any = None
    losses: dict[int, list[Any]]
    recorder: Recorder | None = None


_step = _Step()
_adding: weakref.WeakSet[Any] = weakref.WeakSet()


@contextlib.contextmanager
def _replace(**values: Any) -> Iterator[None]:
    before = {name: getattr(_step, name, None) for name in values}
    for name, value in values.items():
        setattr(_step, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(_step, name, value)


def trial(batch: str, share: Any) -> contextlib.AbstractContextManager[None]:
    """Return a context for the computation of a "part", or of the "whole" batch, in a trial."""
    return _replace(batch=batch, share=share, losses={})


@contextlib.contextmanager
def recording(kinds: Mapping[Any, str] = types.MappingProxyType({})) -> Iterator[Recorder]:
    """Return a context of a trial, in which optimizers apply no gradients."""
    with _replace(recorder=Recorder(), kinds=kinds):
        recorder: Any = _step.recorder
        yield recorder


def in_step() -> bool:
    """Return True on a replica of several in a step of `fit` or `evaluate`."""
    return _step.batch is not None


def is_part() -> bool:
    """Return True while a replica computes its part of a batch."""
    return _step.batch == "part"


def replica_index() -> int:
    """Return the index of the replica that is traced."""
    return _replica().replica_id_in_sync_group


def normalized(
    step: Callable[[Any], Any], kinds: Mapping[Any, str], is_training: bool, needs_equal_parts: bool
) -> Callable[[Any], Any]:
    """Return a step of a model in which the mean over the replicas is that of the global batch.

    Args:
        step: `train_step` or `test_step`.
        kinds: "sum", "mean" or "constant" for each loss that a layer adds.
        is_training: if True, parts without examples raise an error. Gradients of pooling crash for them.
        needs_equal_parts: if True, parts of different sizes raise an error.
    """

    @functools.wraps(step)
    def run(data):
        data = restore_none(data)
        size = tf.cast(tf.shape(next(leaf for leaf in keras.tree.flatten(data) if leaf is not None))[0], tf.float32)
        count = count_replicas()
        counts = sum_over_replicas(tf.stack([size, size * size, tf.cast(size == 0, tf.float32)]))
        total, squares, empty = counts[0], counts[1], counts[2]
        checks = []
        # Sums over the replicas, so that all of them raise the error.
        if is_training:
            message = "A replica has no examples of a batch. Use batch sizes that are multiples of the replicas."
            checks.append(tf.debugging.assert_equal(empty, 0.0, message))
        if needs_equal_parts:
            message = "A `train_step` or `test_step` needs batches that are divisible among the replicas."
            checks.append(tf.debugging.assert_equal(total * total, squares * count, message))
        # Eager checks return None.
        with tf.control_dependencies([check for check in checks if check is not None]):
            data = keras.tree.map_structure(lambda leaf: None if leaf is None else tf.identity(leaf), data)
        with _replace(batch="part", kinds=kinds, share=size * count / total, losses={}):
            return step(data)

    return run


def on_global_batch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `function` with the arguments of all replicas, gathered along the first axis."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        if _step.batch != "part":
            return function(*args, **kwargs)
        gathered: Any = keras.tree.map_structure(gather, (args, kwargs))
        with _replace(batch="global"):
            return function(*gathered[0], **gathered[1])

    call._is_corrected = True  # type: ignore[attr-defined]
    return call


def gather(value: Any) -> Any:
    """Return a tensor of the global batch, with its mask. Scalars and Python objects are returned as they are."""
    if not isinstance(value, tf.Tensor | tf.RaggedTensor | tf.SparseTensor | np.ndarray) or not len(value.shape):
        return value
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        raise ValueError(
            f"On several replicas, losses and metrics of your own require dense tensors. Received: "
            f"{type(value).__name__}. Use the losses and metrics of Keras, or convert it."
        )
    mask = get_mask(value)
    value = tf.convert_to_tensor(value)
    is_boolean = value.dtype == tf.bool
    # TensorFlow's gradient of a list is wrong for tensors of different shapes.
    found: Any = _replica().all_gather(tf.cast(value, tf.int32) if is_boolean else value, axis=0)
    found = tf.cast(found, tf.bool) if is_boolean else found
    found = tf.ensure_shape(found, [None, *value.shape[1:]])
    if mask is not None:
        set_mask(found, gather(mask))
    return found


def count_replicas() -> int:
    """Return the number of replicas."""
    return _replica().num_replicas_in_sync


def sum_over_replicas(value: Any) -> Any:
    """Return the sum of a tensor over the replicas."""
    return _replica().all_reduce(tf.distribute.ReduceOp.SUM, value)


def max_over_replicas(value: Any) -> Any:
    """Return the largest of the scalars of the replicas."""
    return tf.reduce_max(gather(tf.reshape(value, [1])))


def adds_losses(model: keras.Model) -> bool:
    """Return True if a layer has called `add_loss`."""
    own: Any = model
    return any(layer in _adding for layer in own._flatten_layers())


def _replica() -> Any:
    return tf.distribute.get_replica_context()


def correct_overrides(model: keras.Model) -> None:
    """Correct classes of the user: `compute_loss` of the model, and losses with a `__call__` of their own."""
    if overrides_compute_loss(model):
        _correct(model if "compute_loss" in vars(model) else type(model), "compute_loss")
    compiled: Any = getattr(model, "_compile_loss", None)
    for loss in keras.tree.flatten(compiled._user_loss if compiled is not None else None):
        if isinstance(loss, keras.losses.Loss) and type(loss).__call__ is not keras.losses.Loss.__call__:
            _correct(type(loss), "__call__")


def _correct(owner: Any, name: str) -> None:
    function = getattr(owner, name)
    if not hasattr(function, "_is_corrected"):
        setattr(owner, name, on_global_batch(function))


def _is_of_keras(value: Any) -> bool:
    return str(getattr(value, "__module__", None)).startswith(("keras.src.", "keras_hub.src."))


def _is_separable(loss: Any, output: Any) -> bool:
    """Return True for a loss of Keras that has a value for each example."""
    if not _is_of_keras(type(loss)) or (isinstance(loss, LossFunctionWrapper) and not _is_of_keras(loss.fn)):
        return False
    # The last axis, over which losses are means, is that of the examples for outputs of rank 1.
    return len(keras.tree.flatten(output)[0].shape) > 1 and not couples_examples(loss, output)


@corrects(keras.losses.Loss, "__call__", "reduce_weighted_values(")
def _call(original, self, y_true, y_pred, sample_weight=None):
    """Return the loss. Losses of the user, or that couple examples, are those of the global batch."""
    if _step.batch == "part" and not _is_separable(self, y_pred):
        original = on_global_batch(original)
    return original(self, y_true, y_pred, sample_weight)


@corrects(loss_functions, "apply_mask", "valid = ops.sum(")
def _apply_mask(original, sample_weight, mask, dtype, reduction):
    """Apply a mask to weights, with the number of elements and of valid ones of the global batch."""
    if _step.batch == "part" and mask is not None and reduction in ("mean", "sum_over_batch_size"):
        valid = tf.reduce_sum(tf.cast(mask, tf.float32))
        counts = sum_over_replicas(tf.stack([tf.cast(tf.size(mask), tf.float32), valid]))
        factor = tf.cast(tf.math.divide_no_nan(counts[0], counts[1]), dtype)
        mask, reduction = tf.cast(mask, dtype) * factor, "sum"
    return original(sample_weight, mask, dtype, reduction)


@corrects(loss_functions, "reduce_values", "loss = scale_loss_for_distribution(loss)")
def _reduce_values(original, values, sample_weight=None, reduction="sum_over_batch_size"):
    """Reduce the values of a loss, with the divisor of the global batch."""
    if _step.batch != "part" or not len(values.shape):
        return original(values, sample_weight, reduction)
    values = values * tf.cast(count_replicas(), values.dtype)
    if reduction is None or reduction == "none":
        return values
    total = tf.reduce_sum(values)
    if reduction == "sum":
        return total
    divisor: Any = tf.size(values)
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        divisor = tf.reduce_sum(sample_weight)
    divisor = sum_over_replicas(tf.cast(divisor, tf.float32))
    return tf.math.divide_no_nan(total, tf.cast(divisor, total.dtype))


@corrects(loss_functions, "scale_loss_for_distribution", "num_replicas")
def _scale_loss_for_distribution(original, value):
    """Return a loss. The mean of the gradients over the replicas needs no factor."""
    return value if in_step() else original(value)


@corrects(loss_functions, "unscale_loss_for_distribution", "num_replicas")
def _unscale_loss_for_distribution(original, value):
    """Return the loss of the global batch for a metric."""
    if not in_step():
        return original(value)
    if _step.batch != "part":
        return value
    if len(value.shape):
        # The mean over the values of a replica is not a number for a part without examples.
        sums = tf.stack([tf.cast(tf.reduce_sum(value), tf.float32), tf.cast(tf.size(value), tf.float32)])
        total, size = tf.unstack(sum_over_replicas(sums))
        return tf.cast(total / size / count_replicas(), value.dtype)
    return _replica().all_reduce(tf.distribute.ReduceOp.MEAN, value)


@corrects(keras.metrics.MeanMetricWrapper, "update_state", "self._fn(")
def _update_state(original, self, y_true, y_pred, sample_weight=None):
    """Update a metric of a function. A function of the user is computed on the global batch."""
    is_separable = _is_of_keras(self._fn) and len(keras.tree.flatten(y_pred)[0].shape) > 1
    if _step.batch == "part" and not is_separable:
        original = on_global_batch(original)
    return original(self, y_true, y_pred, sample_weight)


@corrects(keras.Metric, "add_variable", "aggregation=aggregation")
def _add_variable(original, self, shape, initializer, dtype=None, aggregation="sum", name=None):
    """Add a variable to a metric. Metrics outside of Keras are computed on the global batch, by each replica."""
    # Metrics of KerasHub call losses.
    if not type(self).__module__.startswith("keras.src."):
        _correct(type(self), "update_state")
        aggregation = "only_first_replica"
    return original(self, shape, initializer, dtype, aggregation, name)


@corrects(keras.Variable, "_direct_assign", "self._value.assign(")
def _assign(original, self, value):
    """Assign to a variable."""
    return original(self, share_of_replica(self, value))


def share_of_replica(variable: keras.Variable, value: Any) -> Any:
    """Return the value that a replica assigns to a variable after the computation of a batch.

    A variable that is summed over the replicas grows by a share of the growth for the global batch. Metrics of Keras
    have such variables. A metric or a `compute_loss` of the user may update them.
    """
    if _step.batch != "global" or variable.aggregation != "sum":
        return value
    value, before = (tf.cast(tensor, variable.dtype) for tensor in (value, variable.value))
    if value.dtype.is_floating:
        return before + (value - before) / count_replicas()
    return tf.where(tf.equal(_replica().replica_id_in_sync_group, 0), value, before)


@corrects(keras.Layer, "add_loss", "self._losses.extend(")
def _add_loss(original, self, loss):
    """Add losses of a layer to those of the replica, with the factor of their kinds."""
    if not in_step():
        _adding.add(self)
        return original(self, loss)
    own = _step.losses.setdefault(id(self), [])
    for value in keras.tree.flatten(loss):
        value, key = tf.reduce_sum(value), (id(self), len(own))
        if _step.recorder is not None:
            _step.recorder.losses.append(((key, self.path or self.name), value))
        elif key not in _step.kinds:
            raise ValueError(f"Layer {self.name!r} must call `add_loss` in every step to train on several replicas.")
        if _step.batch == "part":
            kind = _step.kinds.get(key)
            factor = {"sum": count_replicas(), "mean": _step.share}.get(str(kind), 1.0)
            # The mean over no examples is not a number.
            value = tf.math.multiply_no_nan(value, tf.cast(factor, value.dtype))
        own.append(value)
    return None


@corrects(keras.Layer, "_get_own_losses", "self._losses[:]")
def _get_own_losses(original, self):
    return list(_step.losses.get(id(self), [])) if in_step() else original(self)


@corrects(keras.Layer, "_clear_losses", "self._losses.clear()")
def _clear_losses(original, self):
    if not in_step():
        return original(self)
    for layer in self._flatten_layers():
        _step.losses.pop(id(layer), None)
    return None


@corrects(keras.optimizers.Optimizer, "apply", "self")
@corrects(keras.optimizers.LossScaleOptimizer, "apply", "self")
def _apply(original, self, grads, trainable_variables=None):
    """Apply gradients, or only record them in a trial."""
    if _step.recorder is None:
        return original(self, grads, trainable_variables)
    known = [tf.convert_to_tensor(gradient) for gradient in grads if gradient is not None]
    _step.recorder.gradients += [("gradient", gradient) for gradient in known]
    return None


for _optimizer in MULTI_OPTIMIZERS_SINCE_3_15:
    corrects(_optimizer, "apply", "self")(_apply)
