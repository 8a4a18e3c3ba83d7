"""Exact evaluation of the layers of the memorizers' Keras models, with their weights, options and activations."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf.expressivity._dyadic import Dyadic
from idmatters_tf.expressivity.construction import Weights
from idmatters_tf.expressivity.lookup import STEEP
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
        layer = find_layer(model, name, keras.layers.Dense if activation else ResidualDenseStack)
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
    layer = find_layer(model, name, keras.layers.Dense)
    kernel, *bias = (Dyadic.exactly(array) for array in read_weights(model, name))
    activation = _activation(layer)

    def outputs(values: Dyadic) -> Dyadic:
        found = values @ kernel
        return activation(found + bias[0] if bias else found)

    return outputs


def look_up(
    t: Dyadic,
    boundaries: Dyadic,
    table: Callable[[Dyadic], tuple[Dyadic, Dyadic]],
    per_word: int,
    bits: tuple[int, int],
    classes: int,
) -> tuple[Dyadic, Dyadic]:
    """Evaluate the layers of `lookup_network` at a position on the line.

    Args:
        t: (1,), position.
        boundaries: (chunks,).
        table: function from a one-hot vector (chunks,) to the start of the chunk (1,) and its numbers.
        per_word: number of slots in one packed number, 0 if they are not packed.
        bits: bits of a slot's threshold and label.
        classes: r.

    Returns:
        (offset in the chunk, label), (1,) each.
    """
    start, numbers = table(_last_reached(boundaries, t))
    half = len(numbers.integers) // 2
    thresholds, labels = _read_bits(numbers, per_word, bits) if per_word else (numbers[:half], numbers[half:])
    offset = t - start
    named = (labels - Dyadic.exactly([classes]) * (ONE - _last_reached(thresholds, offset))).relu()
    return offset, named.sum()


def _last_reached(starts: Dyadic, value: Dyadic) -> Dyadic:
    """Return the one-hot vector of the last start that a value reaches, (starts,)."""
    reached = (ONE - Dyadic.exactly([STEEP]) * (starts - value).relu()).relu()
    following = Dyadic(np.append(reached.integers[1:], 0), reached.exponent)
    return (reached - following).relu()


def _read_bits(y: Dyadic, per_word: int, bits: tuple[int, int]) -> tuple[Dyadic, Dyadic]:
    """Read the thresholds and labels of packed numbers (words,), two arrays (words * per_word,)."""
    total = per_word * sum(bits)
    half, full, two = (Dyadic.exactly([2**power]) for power in (total - 1, total, 1))
    read: tuple[list[Dyadic], list[Dyadic]] = ([], [])
    for _ in range(per_word):
        for fields, count in zip(read, bits, strict=True):
            field = y - y
            for _ in range(count):
                bit = (ONE - (half - y).relu()).relu()
                y, field = two * y - full * bit, two * field + bit
            fields.append(field)
    first, second = (_interleave(fields) for fields in read)
    return first, second


def find_layer(model: keras.Model, name: str, kind: type) -> Any:
    """Return a layer of a model.

    Raises:
        ValueError: if it has another type.
    """
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
        keras.activations.hard_tanh: hard_tanh,
    }
    if layer.activation not in activations:
        raise _other_activation(layer)
    return activations[layer.activation]


def hard_tanh(values: Dyadic) -> Dyadic:
    """Clip values to [-1, 1]."""
    return (values + ONE).relu() - (values - ONE).relu() - ONE


def _other_activation(layer: Any) -> ValueError:
    return ValueError(
        f"Argument `model` must be built by `memorize`. Received: activation "
        f"{keras.activations.serialize(layer.activation)!r} in layer {layer.name!r}."
    )


def _interleave(fields: list[Dyadic]) -> Dyadic:
    """Interleave one array (words,) for each slot into one array (words * per_word,)."""
    lowest = min(field.exponent for field in fields)
    aligned = [(field + Dyadic(np.zeros(1, object), lowest)).integers for field in fields]
    return Dyadic(np.stack(aligned, axis=-1).ravel(), lowest)
