"""Tensors of the global batch: gathered values and sums over the replicas, with gradients of the own part only.

Each replica computes the loss of the global batch. The values of the other replicas are constants, so that the SUM of
the gradients of all replicas is the gradient of that loss. No gradient passes through a collective operation.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf._keras_internals.graphs import get_mask, set_mask
from idmatters_tf._keras_types import Tensor
from idmatters_tf._tensorflow_internals.collectives import CARRIERS

# Begin of the messages of checks in graphs.
SEVERAL = "On several replicas, "


class _Step(threading.local):
    """Step that a replica computes. Each replica is traced in a thread of its own.

    Attributes:
        batch: "part" while the replica computes with its part of the batch, "global" while it computes with gathered
            tensors, "counted" in metrics, None outside of steps on several replicas.
        share: number of examples of the part, divided by that of the global batch.
    """

    batch: str | None = None
    share: Any = None


step = _Step()


@contextlib.contextmanager
def within(batch: str, share: Any = None) -> Iterator[None]:
    """Return a context in which the attribute `batch` of the step has a value, and `share` if it is given."""
    before = step.batch, step.share
    step.batch = batch
    if share is not None:
        step.share = share
    try:
        yield
    finally:
        step.batch, step.share = before


def replica() -> Any:
    """Return the context of the replica that is traced."""
    return tf.distribute.get_replica_context()


def is_replica() -> bool:
    """Return True in the context of one of several replicas."""
    context = replica()
    return context is not None and context.num_replicas_in_sync > 1


def count_replicas() -> int:
    """Return the number of replicas."""
    return replica().num_replicas_in_sync


def value_of_first(value: Any) -> Any:
    """Return a tensor on the first replica, and zeros on others: their sum is the value of the first."""
    return tf.where(tf.equal(replica().replica_id_in_sync_group, 0), value, tf.zeros_like(value))


def scale_gradient(value: Any, factor: float) -> Any:
    """Return a tensor whose gradient is multiplied by a factor. Other values are returned as they are."""
    if not tf.is_tensor(value) or not value.dtype.is_floating:
        return value

    @tf.custom_gradient
    def scaled(value):
        return tf.identity(value), lambda gradient: gradient * tf.cast(factor, gradient.dtype)

    return scaled(value)


def sum_over_replicas(value: Any) -> Any:
    """Return the sum of tensors over the replicas, with the gradient of this replica's part."""
    return tf.nest.map_structure(_sum, value)


@tf.custom_gradient
def _sum(value):
    return _all_reduce(_carried(value), value.dtype), lambda gradient: gradient


def _carried(value):
    """Return a tensor in a type whose sums are available. Those of int32 are not on all devices."""
    carrier = CARRIERS.get(value.dtype, value.dtype)
    return tf.cast(value, tf.int64 if carrier.is_integer else carrier)


def _all_reduce(carried, dtype):
    return tf.cast(replica().all_reduce(tf.distribute.ReduceOp.SUM, carried), dtype)


def gather(structure: Any, factor: float = 1.0, has_masks: bool = True) -> Any:
    """Return nested tensors of the global batch. Scalars and Python objects are returned unchanged.

    Args:
        structure: nested tensors, whose first axes are those of the examples.
        factor: factor of the gradient of this replica's part.
        has_masks: if True, the masks of Keras that are attached to tensors are gathered as well.

    Raises:
        ValueError: a tensor is ragged or sparse.
    """
    leaves = keras.tree.flatten(structure)
    indices = [index for index, leaf in enumerate(leaves) if _is_gathered(leaf)]
    masks = [get_mask(leaves[index]) if has_masks else None for index in indices]
    given = [leaves[index] for index in indices] + [mask for mask in masks if mask is not None]
    found = _gather([tf.convert_to_tensor(tensor) for tensor in given], factor)
    gathered_masks = iter(found[len(indices) :])
    for index, mask, tensor in zip(indices, masks, found, strict=False):
        leaves[index] = tensor
        if mask is not None:
            set_mask(tensor, next(gathered_masks))
    return keras.tree.pack_sequence_as(structure, leaves)


def _is_gathered(leaf):
    if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
        raise ValueError(
            f"On several replicas, losses and metrics of your own require dense tensors. Received: "
            f"{type(leaf).__name__}. Use the losses and metrics of Keras, or convert it."
        )
    return isinstance(leaf, tf.Tensor | np.ndarray) and len(leaf.shape) > 0


def stack_parts(value: Any) -> Any:
    """Return small tensors of all replicas, of equal shapes, along a new first axis."""
    return _sum_of_parts(value[None], replica().replica_id_in_sync_group, count_replicas())


def _gather(tensors, factor):
    """Return tensors of all replicas along the first axis."""
    if not tensors:
        return []
    sizes = stack_parts(tf.stack([tf.shape(tensor)[0] for tensor in tensors]))
    firsts = tf.unstack(tf.reduce_sum(sizes[: replica().replica_id_in_sync_group], 0))
    totals = tf.unstack(tf.reduce_sum(sizes, 0))
    found = []
    for tensor, first, total in zip(tensors, firsts, totals, strict=True):
        if tensor.dtype.is_floating:
            whole = _with_gradient_of_part(tensor, first, total, factor)
        else:
            whole = _all_gather(tensor, first, total)
        found.append(tf.ensure_shape(whole, [None, *tensor.shape[1:]]))
    return found


def _with_gradient_of_part(tensor, first, total, factor):
    """Gather a tensor whose gradient is that of this replica's part, multiplied by a factor."""

    @tf.custom_gradient
    def gathered(tensor):
        last = first + tf.shape(tensor)[0]

        def backward(gradient):
            # The gradient of `tf.gather` is sparse.
            return tf.convert_to_tensor(gradient)[first:last] * tf.cast(factor, tensor.dtype)

        return _all_gather(tensor, first, total), backward

    return gathered(tensor)


def _all_gather(tensor, first, total):
    """Gather a tensor. That of this replica begins at the row `first` of `total` rows."""
    if tensor.dtype == tf.string:
        return _all_gather_strings(tensor)
    return _sum_of_parts(tensor, first, total)


def _sum_of_parts(tensor, first, total):
    """Gather a tensor as the sum of the parts between zeros.

    TensorFlow's `all_gather` communicates twice, and takes five times as long to trace.
    """
    rows = [first, total - first - tf.shape(tensor)[0]]
    padded = tf.pad(_carried(tensor), [rows, *[[0, 0]] * (len(tensor.shape) - 1)])
    return _all_reduce(padded, tensor.dtype)


def _all_gather_strings(tensor):
    """Gather strings as the bytes of a serialized tensor of each replica."""
    bytes_of_part = tf.io.decode_raw(tf.io.serialize_tensor(tensor), tf.uint8)
    sizes = stack_parts(tf.shape(bytes_of_part))[:, 0]
    first = tf.reduce_sum(sizes[: replica().replica_id_in_sync_group])
    codes = tf.cast(_all_gather(bytes_of_part, first, tf.reduce_sum(sizes)), tf.int32)
    texts = tf.gather(tf.constant([bytes([code]) for code in range(256)]), codes)
    parts = tf.split(texts, sizes, num=count_replicas())
    return tf.concat([tf.io.parse_tensor(tf.strings.reduce_join(part), tf.string) for part in parts], 0)


def on_global_batch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes a loss of the arguments of all replicas, gathered along the first axis.

    The gradient with respect to variables that the function uses is divided by the number of replicas, which all
    compute it.
    """

    @functools.wraps(function)
    def call(*args, **kwargs):
        if step.batch != "part":
            return function(*args, **kwargs)
        count = count_replicas()
        args, kwargs = gather((args, kwargs), count)
        with within("global"):
            return keras.tree.map_structure(lambda value: scale_gradient(value, 1 / count), function(*args, **kwargs))

    return call


def has_part() -> bool:
    """Return True on one of several replicas that computes with its part of a batch, also in a loop of the user."""
    return is_replica() and step.batch in (None, "part")


def check_equal(value: Tensor, message: str) -> Tensor:
    """Return a tensor after a check that it is equal on all replicas.

    Raises:
        tf.errors.InvalidArgumentError: the tensor differs between the replicas.
    """
    own = tf.cast(tf.stop_gradient(value), tf.float32)
    sums = stack_parts(tf.stack([tf.reduce_sum(own), tf.reduce_sum(tf.abs(own))]))
    size = tf.reduce_max(sums[:, 1])
    difference = tf.reduce_max(sums, 0) - tf.reduce_min(sums, 0)
    check = tf.debugging.assert_less_equal(tf.reduce_max(difference), 1e-4 * size, message)
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(value)
