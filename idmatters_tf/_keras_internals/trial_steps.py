"""Trials of training and evaluation steps on several replicas, before the first step.

Two kinds of code compute a number for the part of a batch that a replica has: layers that call `add_loss`, and a
`train_step` or `test_step` of the user. A trial computes a few examples of each replica in parts and, on every replica,
as one batch. It determines whether an additional loss is a sum or a mean over the examples, and raises an error if the
gradients, losses or metrics of a step differ. Variables do not change, and random numbers are constants.
"""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf._keras_internals import normalization
from idmatters_tf._keras_internals.absent import restore_none
from idmatters_tf._keras_internals.keras_source import backend, get_stateless_scope
from idmatters_tf._keras_internals.normalization import gather
from idmatters_tf._tensorflow_internals.patching import Patch

# Examples of each replica.
_EXAMPLES = 2
# Relative difference of gradients and losses that counts as rounding, in float32 and in 16 bits.
_ROUNDING = 1e-3
_ROUNDING_OF_HALF = 3e-2
_kinds: weakref.WeakKeyDictionary[keras.Model, dict[Any, str]] = weakref.WeakKeyDictionary()


def needs_trial(model: keras.Model, is_training: bool) -> bool:
    """Return True if kinds of losses that layers add are not known, or the model has a step or metrics of its own."""
    adds_losses = normalization.adds_losses(model) and not kinds_of_losses(model)
    return adds_losses or overrides_step(model, is_training) or has_own_metrics(model)


def kinds_of_losses(model: keras.Model) -> dict[Any, str]:
    """Return the kinds of the losses that layers add, see `normalization.normalized`. They are known after a trial."""
    return _kinds.setdefault(model, {})


def overrides_step(model: keras.Model, is_training: bool) -> bool:
    """Return True if `train_step`, or `test_step`, is not that of `keras.Model`."""
    name = "train_step" if is_training else "test_step"
    return name in vars(model) or getattr(type(model), name) is not getattr(keras.Model, name)


def has_own_metrics(model: keras.Model) -> bool:
    """Return True if the model or a layer has metrics beside those of `compile`, or overrides `compute_metrics`."""
    own: Any = model
    overrides = "compute_metrics" in vars(model) or type(model).compute_metrics is not keras.Model.compute_metrics
    return overrides or any(layer._metrics for layer in own._flatten_layers())


def try_step(model: keras.Model, data: Any, is_training: bool) -> None:
    """Determine the kinds of the losses that layers add, and compare a step of the user with that of one replica.

    Args:
        model: model of a strategy with several replicas.
        data: first batch, distributed over the replicas.
        is_training: True for the training step, False for the evaluation step.

    Raises:
        ValueError: the results on several replicas would not be those of one.
    """
    strategy: Any = model.distribute_strategy
    kinds = kinds_of_losses(model)
    with _exact(model):
        if normalization.adds_losses(model) and not kinds:
            parts, whole = _run(strategy, data, lambda part: _record_losses(model, part, is_training))
            kinds.update(_kind(model, *values) for values in zip(parts, whole, strict=True))
        has_step = overrides_step(model, is_training)
        if has_step or has_own_metrics(model):
            step: Any = model.train_step if is_training else model.test_step
            # Only a step of the user needs parts of equal sizes.
            parts, whole = _run(strategy, data, lambda part: _record_step(model, step, part, kinds), not has_step)
            _compare(model, parts, whole, is_training)


def _run(strategy, data, record, is_uneven=False):
    """Return the records of parts, one for each replica, and the record of the global batch."""
    names: list[Any] = []

    def trial(data):
        data = restore_none(data)
        first = next(leaf for leaf in keras.tree.flatten(data) if leaf is not None)
        count = -normalization.max_over_replicas(-tf.minimum(tf.shape(first)[0], _EXAMPLES))
        if is_uneven:
            count = tf.maximum(count - tf.cast(normalization.replica_index() > 0, tf.int32), 1)
        size = tf.cast(count, tf.float32)
        share = size * normalization.count_replicas() / normalization.sum_over_replicas(size)
        part = keras.tree.map_structure(lambda leaf: leaf[:count] if _is_batch(leaf) else leaf, data)
        whole = keras.tree.map_structure(gather, part)
        found = []
        for batch, values in (("part", part), ("whole", whole)):
            with normalization.trial(batch, share), _Scope():
                records = record(values)
            names[:] = [name for name, _ in records]
            found.append([tf.expand_dims(tf.cast(value, tf.float32), 0) for _, value in records])
        return [[gather(value) for value in found[0]], [value[0] for value in found[1]]]

    parts, whole = tf.function(lambda data: strategy.run(trial, (data,)), autograph=False)(data)

    def read(values):
        first = (strategy.experimental_local_results(value)[0] for value in values)
        return list(zip(names, (value.numpy() for value in first), strict=True))

    return read(parts), read(whole)


def _is_batch(leaf):
    return leaf is not None and len(leaf.shape) > 0


def _record_losses(model, data, is_training):
    x = keras.utils.unpack_x_y_sample_weight(data)[0]
    with normalization.recording() as recorder, _perturbed():
        options = {"training": is_training} if model._call_has_training_arg else {}
        model(x, **options)
    return recorder.losses


def _record_step(model, step, data, kinds):
    with normalization.recording(kinds) as recorder:
        logs = step(data)
    # `fit` replaces logs with the names of metrics by their results for all replicas.
    logs = {} if set(logs or ()) == set(model.get_metrics_result()) else logs or {}
    results = [(name, keras.tree.map_structure(tf.reduce_mean, value)) for name, value in logs.items()]
    scope: Any = get_stateless_scope()
    for metric in {id(metric): metric for metric in (*model.metrics, *model._metrics)}.values():
        for variable in metric.variables:
            scope.sum_over_replicas(variable)
        results.append((f"metric {metric.name}", metric.result()))
    values = [(name, tf.cast(value, tf.float32)) for name, result in results for value in keras.tree.flatten(result)]
    # Metrics of a few examples may not be finite.
    return [*recorder.gradients, *((name, tf.where(tf.math.is_finite(value), value, 0.0)) for name, value in values)]


def _kind(model, part, whole):
    """Return the key and the kind of an additional loss for its values on the replicas and on the global batch."""
    (key, name), values = part
    tolerance = _tolerance(model) * np.max(np.abs([*values, whole[1]]))
    if tolerance > 0:
        candidates = {"constant": values, "mean": np.mean(values), "sum": np.sum(values)}
        for kind, value in candidates.items():
            if np.all(np.abs(value - whole[1]) <= tolerance):
                return key, kind
    raise ValueError(
        f"The loss that layer {name!r} adds must be a sum or a mean over the examples of a batch on several replicas. "
        f"Received: {', '.join(f'{value:.6g}' for value in values)} for parts of a batch, {whole[1]:.6g} for the batch."
    )


def _compare(model, parts, whole, is_training):
    name = f"{'train_step' if is_training else 'test_step'} of {model.name!r}"
    remedy = (
        "Use means over the examples, the losses of Keras and random numbers of `keras.random`, update metrics with "
        "the values of the examples and return their results by name, or pass the loss to `compile`."
    )
    if is_training and not any(key == "gradient" for key, _ in whole):
        raise ValueError(f"{name} must call `apply` of an optimizer to train on several replicas. {remedy}")
    # Gradients of one call of `apply` are compared together.
    for kind in dict(whole):
        pairs = [(np.mean(part, 0), total) for (key, part), (_, total) in zip(parts, whole, strict=True) if key == kind]
        difference = np.sqrt(sum(np.sum(np.square(mean - total)) for mean, total in pairs))
        size = np.sqrt(sum(np.sum(np.square(total)) for _, total in pairs))
        if not difference <= _tolerance(model) * size + 1e-12:
            raise ValueError(
                f"{name} must compute the same on a batch and on its parts. Received: a relative difference of "
                f"{difference / max(size, 1e-30):.3g} ({kind}). {remedy}"
            )


def _tolerance(model):
    return _ROUNDING if model.compute_dtype in ("float32", "float64") else _ROUNDING_OF_HALF


class _Scope(keras.StatelessScope):
    """Scope in which variables keep their values. Gradients with respect to them are possible."""

    def __init__(self) -> None:
        super().__init__()
        self.is_perturbed = False

    def add_update(self, update: Any) -> None:
        variable, value = update
        super().add_update((variable, normalization.share_of_replica(variable, value)))

    def sum_over_replicas(self, variable: Any) -> None:
        """Replace the value of a variable of a metric by that for all replicas."""
        if variable.aggregation == "sum" and normalization.is_part():
            # Several workers cannot reduce the value of a variable, which has no device.
            super().add_update((variable, normalization.sum_over_replicas(tf.identity(variable.value))))

    def get_current_value(self, variable: Any) -> Any:
        value = super().get_current_value(variable)
        value = variable._value if value is None else value
        if not self.is_perturbed or value is None or not value.dtype.is_floating:
            return value
        # Losses that are zero for the initial weights have another value.
        waves = tf.reshape(tf.cos(tf.range(tf.size(value), dtype=tf.float32)), tf.shape(value))
        return value * 1.1 + 0.05 * tf.cast(waves, value.dtype)


@contextlib.contextmanager
def _perturbed() -> Iterator[None]:
    scope: Any = get_stateless_scope()
    scope.is_perturbed = True
    try:
        yield
    finally:
        scope.is_perturbed = False


def _exact(model: keras.Model) -> Patch:
    """Return a context without dropout, with constant random numbers and with synchronized batch normalization."""
    own: Any = model
    layers = [layer for layer in own._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    replacements: list[tuple[Any, str, Any]] = [
        *((layer, "synchronized", True) for layer in layers),
        (backend.random, "dropout", lambda inputs, *_, **__: inputs),
        (backend.random, "randint", lambda shape, minval, *_, dtype="int32", **__: _fill(shape, minval, dtype)),
        (backend.random, "normal", _normal),
        (backend.random, "truncated_normal", _normal),
        (backend.random, "uniform", _uniform),
        (tf.random, "normal", _normal),
        (tf.random, "truncated_normal", _normal),
        (tf.random, "uniform", _uniform),
    ]
    return Patch(*replacements)


def _normal(shape, mean=0.0, stddev=1.0, dtype=None, seed=None, name=None):
    return _fill(shape, mean + 0.3 * stddev, dtype)


def _uniform(shape, minval=0, maxval=None, dtype=None, seed=None, name=None):
    return _fill(shape, minval + 0.3 * ((1 if maxval is None else maxval) - minval), dtype)


def _fill(shape, value, dtype):
    return tf.zeros(shape, dtype or "float32") + tf.cast(value, dtype or "float32")
