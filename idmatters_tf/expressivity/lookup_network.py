"""Keras layers and models of the constructions in `idmatters_tf.expressivity.lookup` and `three_layers`.

Models of `lookup` are exact in float64 after the projection.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from idmatters_tf.expressivity.lookup import STEEP, Lookup
from idmatters_tf.expressivity.models import ExactModel
from idmatters_tf.expressivity.three_layers import ThreeLayers


@keras.saving.register_keras_serializable("idmatters_tf")
class ChunkIndicator(keras.layers.Layer):
    """One-hot vector of the chunk of the line that contains a number t.

    With reached = relu(1 - 8 relu(boundaries - t)) the output is relu(reached - next reached). It is exactly 0 or 1 for
    numbers that are at least an eighth below the next boundary.

    Args:
        chunks: number of chunks.

    Input shape:
        (batch, 1).

    Output shape:
        (batch, chunks).
    """

    def __init__(self, chunks: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.chunks = chunks

    def build(self, input_shape: Any) -> None:
        self.boundaries = self.add_weight(shape=(self.chunks,), initializer="zeros", name="boundaries")
        self.built = True

    def call(self, inputs: Any) -> Any:
        return _last_reached(self.boundaries, inputs)

    def get_config(self) -> dict[str, Any]:
        return {"chunks": self.chunks, **super().get_config()}


@keras.saving.register_keras_serializable("idmatters_tf")
class BitReader(keras.layers.Layer):
    """Reader of packed integers, bit by bit from the highest.

    For a number y below 2^b, the bit is relu(1 - relu(2^(b-1) - y)), and y becomes 2 y - 2^b bit.

    Args:
        per_word: number of slots in a packed number.
        bits: bits of the two fields of a slot.

    Input shape:
        (batch, words).

    Output shape:
        Two tensors (batch, words * per_word).
    """

    def __init__(self, per_word: int, bits: tuple[int, int], **kwargs: Any):
        super().__init__(**kwargs)
        self.per_word, self.bits = per_word, tuple(bits)

    def call(self, inputs: Any) -> Any:
        total = self.per_word * sum(self.bits)
        half, full, y = 2.0 ** (total - 1), 2.0**total, inputs
        read: tuple[list[Any], list[Any]] = ([], [])
        for _ in range(self.per_word):
            for fields, bits in zip(read, self.bits, strict=True):
                field: Any = ops.zeros_like(y)
                for _ in range(bits):
                    bit = _relu(1 - _relu(half - y))
                    y, field = 2 * y - full * bit, 2 * field + bit
                fields.append(field)
        slots = inputs.shape[-1] * self.per_word
        return tuple(ops.reshape(ops.stack(fields, axis=-1), (-1, slots)) for fields in read)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return ((input_shape[0], input_shape[1] * self.per_word),) * 2

    def get_config(self) -> dict[str, Any]:
        return {"per_word": self.per_word, "bits": self.bits, **super().get_config()}


@keras.saving.register_keras_serializable("idmatters_tf")
class SlotLabel(keras.layers.Layer):
    """Label after the last threshold below an offset, as a number.

    Args:
        classes: number of classes.

    Input shape:
        Offsets (batch, 1), thresholds and labels (batch, slots). Thresholds are non-decreasing and start with 0.

    Output shape:
        (batch, 1).
    """

    def __init__(self, classes: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.classes = classes

    def call(self, inputs: Any) -> Any:
        offset, thresholds, labels = inputs
        here = _last_reached(thresholds, offset)
        return ops.sum(_relu(labels - self.classes * (1 - here)), axis=-1, keepdims=True)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape[0]

    def get_config(self) -> dict[str, Any]:
        return {"classes": self.classes, **super().get_config()}


def lookup_network(lookup: Lookup) -> keras.Model:
    """Build the Keras model (batch, d) -> (batch, classes) with the numbers of a `Lookup`, in float64."""
    table = lookup.table()
    chunks, columns = table.shape
    same: dict[str, Any] = {"dtype": "float64"}
    inputs = keras.Input((len(lookup.kernel),), dtype="float64", name="points")
    line = keras.layers.Dense(1, kernel_initializer="zeros", name="projection", **same)(inputs)
    chosen = ChunkIndicator(chunks, name="chunk", **same)(line)
    rows = keras.layers.Dense(columns, use_bias=False, kernel_initializer="zeros", name="table", **same)(chosen)
    offset = keras.layers.Subtract(name="offset", **same)([line, rows[:, :1]])
    if lookup.per_word:
        bits = lookup.threshold_bits, lookup.label_bits
        thresholds, labels = BitReader(lookup.per_word, bits, name="bits", **same)(rows[:, 1:])
    else:
        slots = (columns - 1) // 2
        thresholds, labels = rows[:, 1 : slots + 1], rows[:, slots + 1 :]
    name = SlotLabel(lookup.classes, name="label", **same)([offset, thresholds, labels])
    return _with_one_hot(
        inputs,
        name,
        lookup.classes,
        {
            "projection": [lookup.kernel[:, None], np.array([lookup.bias])],
            "chunk": [lookup.boundaries],
            "table": [table.astype(np.float64)],
        },
    )


def three_layers_network(network: ThreeLayers) -> keras.Model:
    """Build the Keras model (batch, d) -> (batch, classes) with the numbers of a `ThreeLayers`, in float64.

    The layers are `projection`, a single unit that is part of the first layer of the theorem, `first`, `second`, and
    `label`, the third layer.
    """
    m, q = network.weights.shape
    same: dict[str, Any] = {"dtype": "float64", "kernel_initializer": "zeros"}
    inputs = keras.Input((len(network.kernel),), dtype="float64", name="points")
    line = keras.layers.Dense(1, name="projection", **same)(inputs)
    first = keras.layers.Dense(m, "hard_tanh", name="first", **same)(line)
    second = keras.layers.Dense(q, "hard_tanh", name="second", **same)(first)
    name = keras.layers.Dense(1, name="label", **same)(second)
    return _with_one_hot(
        inputs,
        name,
        network.classes,
        {
            "projection": [network.kernel[:, None], np.array([network.bias])],
            "first": [network.slopes[None], network.offsets],
            "second": [network.weights, network.biases],
            "label": [np.full((q, 1), network.classes / 2), np.array([-0.5])],
        },
    )


def _with_one_hot(inputs: Any, name: Any, classes: int, weights: dict[str, Any]) -> keras.Model:
    """Append relu(1 - |label - c|) for each class c, and set the weights by layer name."""
    same: dict[str, Any] = {"dtype": "float64", "kernel_initializer": "zeros"}
    distances = keras.layers.Dense(2 * classes, "relu", name="last_hidden", **same)(name)
    outputs = keras.layers.Dense(classes, "relu", name="last", **same)(distances)
    model = ExactModel(inputs, outputs, name="memorizer")
    numbers, identity, ones = np.arange(classes, dtype=np.float64), np.eye(classes), np.ones((1, classes))
    last = {
        "last_hidden": [np.concatenate([ones, -ones], axis=1), np.concatenate([-numbers, numbers])],
        "last": [-np.concatenate([identity, identity]), np.ones(classes)],
    }
    for layer, values in {**weights, **last}.items():
        model.get_layer(layer).set_weights(values)
    return model


def _last_reached(starts: Any, value: Any) -> Any:
    """Return the one-hot vector of the last start that a value reaches, (batch, starts)."""
    reached = _relu(1 - STEEP * _relu(starts - value))
    following = ops.concatenate([reached[:, 1:], ops.zeros_like(reached[:, :1])], axis=1)
    return _relu(reached - following)


def _relu(values: Any) -> Any:
    return ops.relu(values)
