"""Exact evaluation of the layers of the memorizers' Keras models, with their weights, options and activations."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf.expressivity._dyadic import Dyadic
from idmatters_tf.expressivity.construction import Weights
from idmatters_tf.expressivity.lookup import STEEP
from idmatters_tf.expressivity.lookup_network import BitReader, ChunkIndicator, SlotLabel
from idmatters_tf.layers import ResidualDenseStack

ONE = Dyadic.exactly([1])

# Layers of each construction's model, except the input and slices.
LAYERS = {
    "hardt-ma": {"projection", "blocks", "last_hidden", "last"},
    "yun": {"projection", "first", "second", "label", "last_hidden", "last"},
    "lookup": {"projection", "chunk", "table", "offset", "label", "last_hidden", "last"},
    "bit-extraction": {"projection", "chunk", "table", "offset", "bits", "label", "last_hidden", "last"},
}


def layer_names(model: keras.Model) -> list[str]:
    """List the names of a model's layers, except the input."""
    return sorted(layer.name for layer in model.layers if not isinstance(layer, keras.layers.InputLayer))


def find_construction(model: keras.Model) -> str:
    """Return the construction of a model, from its layers.

    Raises:
        ValueError: if the model has other layers.
    """
    names = layer_names(model)
    for construction, layers in LAYERS.items():
        if names == sorted(layers):
            return construction
    raise ValueError(f"Argument `model` must be built by `memorize`. Received: layers {names}")


def residual_weights(model: keras.Model) -> Weights:
    """Read the weights of a model of construction="hardt-ma", with empty order and margins.

    Raises:
        ValueError: if a layer has another type or activation, or weights that are not finite.
    """
    kinds = {"projection": "linear", "blocks": None, "last_hidden": "relu", "last": "linear"}
    for name, activation in kinds.items():
        layer = _layer(model, name, keras.layers.Dense if activation else ResidualDenseStack)
        if activation and layer.activation is not keras.activations.get(activation):
            raise _other_activation(layer)
    projection, *bias = read_weights(model, "projection")
    U, s, V = read_weights(model, "blocks")
    last_U, last_s = read_weights(model, "last_hidden")
    (last_V,) = read_weights(model, "last")
    order, margins = np.empty(0, np.int64), np.empty(0)
    return Weights(projection, bias[0] if bias else None, U, s, V, last_U, last_s, last_V, order, margins)


def read_weights(model: keras.Model, layer: str) -> list[NDArray[np.float64]]:
    """Read the weights of a layer, in float64.

    Raises:
        ValueError: if a weight is NaN or infinite.
    """
    arrays = [np.asarray(keras.ops.convert_to_numpy(one), np.float64) for one in model.get_layer(layer).weights]
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError(
            f"Argument `model` must have finite weights. Received: NaN or infinite weights in layer {layer!r}."
        )
    return arrays


def dense(model: keras.Model, name: str) -> Callable[[Dyadic], Dyadic]:
    """Return the exact function of a Dense layer, (inputs,) -> (units,).

    Raises:
        ValueError: if the layer has another type, or an activation that memorizers do not use.
    """
    layer = _layer(model, name, keras.layers.Dense)
    kernel, *bias = (Dyadic.exactly(array) for array in read_weights(model, name))
    activation = _activation(layer)

    def outputs(values: Dyadic) -> Dyadic:
        found = values @ kernel
        return activation(found + bias[0] if bias else found)

    return outputs


def chunk_indicator(model: keras.Model, name: str) -> Callable[[Dyadic], Dyadic]:
    """Return the exact function of a `ChunkIndicator`, (1,) -> (chunks,)."""
    _layer(model, name, ChunkIndicator)
    (boundaries,) = (Dyadic.exactly(array) for array in read_weights(model, name))

    def outputs(values: Dyadic) -> Dyadic:
        reached = _reached(boundaries, values)
        return (reached - _next(reached)).relu()

    return outputs


def bit_reader(model: keras.Model, name: str) -> Callable[[Dyadic], tuple[Dyadic, Dyadic]]:
    """Return the exact function of a `BitReader`, (words,) -> two arrays (words * per_word,)."""
    layer = _layer(model, name, BitReader)
    total = layer.per_word * sum(layer.bits)
    half, full = Dyadic.exactly([2 ** (total - 1)]), Dyadic.exactly([2**total])
    two = Dyadic.exactly([2])

    def outputs(y: Dyadic) -> tuple[Dyadic, Dyadic]:
        read: tuple[list[Dyadic], list[Dyadic]] = ([], [])
        for _ in range(layer.per_word):
            for fields, bits in zip(read, layer.bits, strict=True):
                field = y - y
                for _ in range(bits):
                    bit = (ONE - (half - y).relu()).relu()
                    y, field = two * y - full * bit, two * field + bit
                fields.append(field)
        first, second = (_interleave(fields) for fields in read)
        return first, second

    return outputs


def slot_label(model: keras.Model, name: str) -> Callable[[Dyadic, Dyadic, Dyadic], Dyadic]:
    """Return the exact function of a `SlotLabel`: offset (1,), thresholds and labels (slots,) -> (1,)."""
    classes = Dyadic.exactly([_layer(model, name, SlotLabel).classes])

    def outputs(offset: Dyadic, thresholds: Dyadic, labels: Dyadic) -> Dyadic:
        passed = _reached(thresholds, offset)
        here = (passed - _next(passed)).relu()
        named = (labels - classes * (ONE - here)).relu()
        return Dyadic(np.array([sum(named.integers)], object), named.exponent)

    return outputs


def _layer(model: keras.Model, name: str, kind: type) -> Any:
    layer = model.get_layer(name)
    if not isinstance(layer, kind):
        raise ValueError(
            f"Argument `model` must be built by `memorize`, with a {kind.__name__} as layer {name!r}. Received: "
            f"{type(layer).__name__}."
        )
    return layer


def _activation(layer: Any) -> Callable[[Dyadic], Dyadic]:
    activations: dict[Any, Callable[[Dyadic], Dyadic]] = {
        keras.activations.linear: lambda values: values,
        keras.activations.relu: Dyadic.relu,
        keras.activations.hard_tanh: lambda values: (values + ONE).relu() - (values - ONE).relu() - ONE,
    }
    if layer.activation not in activations:
        raise _other_activation(layer)
    return activations[layer.activation]


def _other_activation(layer: Any) -> ValueError:
    return ValueError(
        f"Argument `model` must be built by `memorize`. Received: activation "
        f"{keras.activations.serialize(layer.activation)!r} in layer {layer.name!r}."
    )


def _reached(starts: Dyadic, value: Dyadic) -> Dyadic:
    """Compute relu(1 - 8 relu(starts - value)): 1 from each start on, 0 an eighth below it."""
    return (ONE - Dyadic.exactly([STEEP]) * (starts - value).relu()).relu()


def _next(values: Dyadic) -> Dyadic:
    """Shift the numbers to the left, with 0 as the last one."""
    return Dyadic(np.append(values.integers[1:], 0), values.exponent)


def _interleave(fields: list[Dyadic]) -> Dyadic:
    """Interleave one array (words,) for each slot into one array (words * per_word,)."""
    lowest = min(field.exponent for field in fields)
    aligned = [(field + Dyadic(np.zeros(1, object), lowest)).integers for field in fields]
    return Dyadic(np.stack(aligned, axis=-1).ravel(), lowest)
