"""Parts of a model while a step is traced: their losses and metrics become those of the global batch."""

import contextlib
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal

import keras
import tensorflow as tf

from idmatters_tf._keras_internals.losses import overrides_compute_loss
from idmatters_tf._keras_internals.replicas.collectives import (
    SEVERAL,
    check_equal,
    count_replicas,
    on_global_batch,
    scale_gradient,
    step,
    sum_over_replicas,
)
from idmatters_tf._keras_internals.replicas.metrics import metrics_within, updates_of_global_batch
from idmatters_tf._keras_internals.versions import ACTIVITY_LOSSES_SINCE_3_14

# Regularizers of Keras that are sums over the elements of an output.
_SUMS = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)


@dataclasses.dataclass(frozen=True)
class Declarations:
    """Statements of the user about the code of models.

    Attributes:
        added_losses: "mean" or "sum" over the examples, for the losses that layers add; None if it is not stated.
        own_steps: True if the steps of models have been checked.
    """

    added_losses: Literal["mean", "sum"] | None = None
    own_steps: bool = False


_declared: weakref.WeakKeyDictionary[Any, Declarations] = weakref.WeakKeyDictionary()


def declare(strategy: Any, declarations: Declarations) -> None:
    """Store the statements of the user about the models of a strategy."""
    _declared[strategy] = declarations


def declarations_of(strategy: Any) -> Declarations:
    """Return the statements of the user about the models of a strategy."""
    return _declared.get(strategy, Declarations())


@contextlib.contextmanager
def prepared(model: keras.Model) -> Iterator[None]:
    """Replace attributes of the parts of a model while a step of it is traced, or computed eagerly."""
    own: Any = model
    kind = declarations_of(own.distribute_strategy).added_losses
    values: list[tuple[Any, str, Any]] = []
    for layer in own._flatten_layers():
        added = _AddedLosses(layer, kind)
        values.append((layer, "_losses", added))
        if layer.activity_regularizer is not None:
            values.append((layer, "activity_regularizer", added.recorded(layer.activity_regularizer)))
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            values.append((layer, "_moments", functools.partial(_moments, layer, layer._moments)))
    for variable in own.trainable_variables:
        values.append((variable, "_direct_assign", _equal_assign(variable)))
        if variable.regularizer is not None:
            values.append((variable, "_regularizer", _penalty(variable.regularizer)))
    values += [(metric, "update_state", updates_of_global_batch(metric)) for metric in metrics_within(model)]
    if overrides_compute_loss(model):
        values.append((model, "compute_loss", on_global_batch(own.compute_loss)))
    compiled: Any = own._compile_loss
    if compiled is not None and compiled.built:
        entries = [entry._replace(loss=_loss_of_global_batch(entry.loss)) for entry in compiled._flat_losses]
        values.append((compiled, "_flat_losses", entries))
    with replaced_attributes(values):
        yield


@contextlib.contextmanager
def replaced_attributes(values: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Return a context in which attributes (object, name, value) of objects have other values.

    Afterwards the objects have the same attributes as before, also where the class has defined the original.
    """
    before = [(vars(owner), name, vars(owner).get(name, _ABSENT)) for owner, name, _ in values]
    try:
        for owner, name, value in values:
            vars(owner)[name] = value
        yield
    finally:
        for attributes, name, value in reversed(before):
            if value is _ABSENT:
                attributes.pop(name, None)
            else:
                attributes[name] = value


_ABSENT = object()


def _loss_of_global_batch(loss):
    """Return a compiled loss. A class of the user with a `__call__` of its own does not call that of Keras."""
    is_own = isinstance(loss, keras.losses.Loss) and type(loss).__call__ is not keras.losses.Loss.__call__
    return on_global_batch(loss) if is_own else loss


def _penalty(regularizer):
    """Return a regularizer of a variable, which all replicas compute: each has a share of the gradient."""

    def penalty(value):
        found = regularizer(value)
        return scale_gradient(found, 1 / count_replicas()) if step.batch == "part" else found

    return penalty


def _equal_assign(variable):
    """Return the method that assigns a value to a weight in a step, other than by an optimizer."""
    assign = variable._direct_assign

    def assign_equal(value):
        if step.batch == "part":
            value = check_equal(tf.cast(value, variable.dtype), _OTHER_VALUES.format(variable.path))
        assign(value)

    return assign_equal


_OTHER_VALUES = (
    f"{SEVERAL}{{}} is assigned other values on each. Sum the gradients of the replicas before: "
    "tf.distribute.get_replica_context().all_reduce('SUM', gradients)."
)


class _AddedLosses(list[Any]):
    """Losses that a layer adds, of each replica. Those that Keras reads are of the global batch.

    Args:
        layer: layer that adds the losses.
        kind: "mean" or "sum" over the examples; None if it is not known.
    """

    def __init__(self, layer: keras.Layer, kind: str | None):
        super().__init__()
        self._layer = layer
        self._kind = kind
        # Replicas are traced in threads, which alternate.
        self._local = threading.local()

    def _added(self) -> list[list[Any]]:
        """Return [loss, kind, loss of the global batch or None] for each loss of this replica."""
        if not hasattr(self._local, "added"):
            self._local.added, self._local.kind = [], None
        return self._local.added

    def recorded(self, regularizer: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return an activity regularizer. Keras adds its loss next."""

        def compute(output):
            self._added()
            self._local.kind = ACTIVITY_LOSSES_SINCE_3_14 if type(regularizer) in _SUMS else self._kind
            return regularizer(output)

        return compute

    def extend(self, losses: Any) -> None:
        added = self._added()
        kind, self._local.kind = self._local.kind or self._kind, None
        added.extend([loss, kind, None] for loss in losses)

    def clear(self) -> None:
        self._added().clear()

    def __len__(self) -> int:
        return len(self._added())

    def __iter__(self) -> Iterator[Any]:
        return iter(self[:])

    def __getitem__(self, index: Any) -> Any:
        entries = self._added()
        if step.batch is None:
            return [loss for loss, *_ in entries][index]
        for entry in entries:
            if entry[2] is None:
                entry[2] = self._of_global_batch(*entry[:2])
        found = [value for *_, value in entries]
        if step.batch == "global":
            found = [scale_gradient(value, count_replicas()) for value in found]
        return found[index]

    def _of_global_batch(self, loss, kind):
        if kind is None:
            raise ValueError(
                f"Layer {self._layer.path or self._layer.name!r} calls `add_loss` with a loss of a part of the batch. "
                f"Pass added_losses='mean' or added_losses='sum' to the function that returned the strategy: a mean or "
                f"a sum over the examples."
            )
        value = tf.convert_to_tensor(loss)
        value = tf.reduce_sum(value if value.dtype.is_floating else tf.cast(value, keras.config.floatx()))
        if kind == "mean":
            # The mean over no examples is not a number.
            value = tf.math.multiply_no_nan(value, tf.cast(step.share, value.dtype))
        return sum_over_replicas(value)


def _moments(layer, original, inputs, mask):
    """Return the moments of unmasked inputs over all replicas. Keras computes those of the part."""
    if mask is None or step.batch is None:
        return original(inputs, mask)
    axes = layer._reduction_axes
    mask = tf.broadcast_to(tf.cast(tf.expand_dims(mask, -1), tf.bool), tf.shape(inputs))
    zeros = tf.zeros_like(inputs)
    all_reduce = tf.distribute.get_replica_context().all_reduce
    total = tf.distribute.ReduceOp.SUM
    count = all_reduce(total, tf.reduce_sum(tf.cast(mask, inputs.dtype), axes)) + keras.config.epsilon()
    mean = all_reduce(total, tf.reduce_sum(tf.where(mask, inputs, zeros), axes)) / count
    shape = [1 if axis in axes else -1 for axis in range(len(inputs.shape))]
    differences = tf.where(mask, inputs - tf.reshape(mean, shape), zeros)
    return mean, all_reduce(total, tf.reduce_sum(tf.square(differences), axes)) / count
