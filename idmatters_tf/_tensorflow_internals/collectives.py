"""Collective operations between workers with the types that they lack."""

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import collective_ops

from idmatters_tf._keras_types import Tensor

# Types that collective operations lack, with types that have them and contain all of their values.
CARRIERS: dict[Any, Any] = {
    tf.bool: tf.int32,
    tf.uint8: tf.int32,
    tf.int8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
    tf.bfloat16: tf.float32,
    tf.float16: tf.float32,
}
_ops: Any = collective_ops
_broadcast_send, _broadcast_recv = _ops.broadcast_send, _ops.broadcast_recv


def broadcast_all_types() -> None:
    """Let strategies create variables of all types on several workers, until the process ends.

    `MultiWorkerMirroredStrategy` broadcasts the initial values of variables, and fails for bfloat16.
    """

    def send(value: Tensor, shape: Tensor, kind: tf.DType, *keys: object, **options: object) -> Tensor:
        carrier = CARRIERS.get(kind, kind)
        return _broadcast_send(tf.cast(value, carrier), shape, carrier, *keys, **options)

    def receive(shape: Tensor, kind: tf.DType, *keys: object, **options: object) -> Tensor:
        return tf.cast(_broadcast_recv(shape, CARRIERS.get(kind, kind), *keys, **options), kind)

    _ops.broadcast_send, _ops.broadcast_recv = send, receive
