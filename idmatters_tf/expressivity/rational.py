"""Verification and evaluation of memorizers in rational arithmetic."""

from collections.abc import Callable
from fractions import Fraction

import keras
import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf.expressivity._dyadic import Dyadic
from idmatters_tf.expressivity._exact_blocks import ExactBlocks
from idmatters_tf.expressivity._exact_layers import (
    dense,
    find_construction,
    find_layer,
    hard_tanh,
    look_up,
    read_weights,
    residual_weights,
)
from idmatters_tf.expressivity._samples import check_sample
from idmatters_tf.expressivity.lookup import Lookup
from idmatters_tf.expressivity.lookup_network import BitReader, ChunkIndicator, SlotLabel
from idmatters_tf.expressivity.three_layers import ThreeLayers
from idmatters_tf.expressivity.verification import Verification

Outputs = Callable[[Dyadic], Dyadic]


def verify_exactly(
    model: keras.Model,
    x: ArrayLike,
    labels: ArrayLike,
    progress: Callable[[int, int], object] | None = None,
) -> Verification:
    """Compare the outputs of a model with one-hot vectors on every row, in rational arithmetic.

    Floats are rational numbers, and so are all values that a network of ReLUs computes from them. The result is
    independent of a machine's rounding, unlike that of `verify`. Weights and activations of every layer are read from
    the model. The function is intended for hundreds or thousands of rows.

    Args:
        model: float64 or float32 model of `memorize`, possibly loaded from a file.
        x: (n, d) rows.
        labels: (n,) integers.
        progress: callable that receives (rows done, n).

    Returns:
        A `Verification`. A row is correct if its label's output is larger than all others. `largest_error` is exactly 0
        if all outputs are exact.

    Raises:
        ValueError: if the model is not built by `memorize`, a weight is not finite, or a row is infinite in the model's
            dtype.
    """
    x, labels, _ = check_sample(x, labels, model.output_shape[-1])
    with np.errstate(over="ignore"):
        x = x.astype(model.inputs[0].dtype)
    if not np.isfinite(x).all():
        raise ValueError(
            f"Argument `x` must be finite in {x.dtype}, the model's dtype. Divide it by its largest entry."
        )
    outputs = _outputs(model)
    correct, largest, wrong = 0, Fraction(0), []
    for row, (point, label) in enumerate(zip(x, labels, strict=True)):
        found = outputs(Dyadic.exactly(point)).fractions()
        if sum(value >= found[label] for value in found) == 1:
            correct += 1
        else:
            wrong.append(row)
        error = max(abs(value - (number == label)) for number, value in enumerate(found))
        largest = max(largest, error)
        if progress is not None:
            progress(row + 1, len(x))
    return Verification(len(x), correct, _float(largest), tuple(wrong[:10]))


def evaluate_exactly(lookup: Lookup, row: ArrayLike) -> tuple[int, Fraction]:
    """Evaluate a network of construction "lookup" or "bit-extraction" without rounding.

    Args:
        lookup: numbers of the network.
        row: (d,).

    Returns:
        (label, offset in its chunk).

    Raises:
        ValueError: if the row is on an edge between two labels.
    """
    boundaries, numbers = Dyadic.exactly(lookup.boundaries), Dyadic.exactly(lookup.table()[:, 1:])
    offset, label = look_up(
        _project(lookup, row),
        boundaries,
        lambda chunk: (chunk @ boundaries[:, None], chunk @ numbers),
        lookup.per_word,
        (lookup.threshold_bits, lookup.label_bits),
        lookup.classes,
    )
    (name,) = label.fractions()
    if name.denominator != 1:
        raise ValueError(
            f"Argument `row` must not be on an edge between two labels. The network returns {float(name):.3g}."
        )
    return int(name), offset.fractions()[0]


def evaluate_three_layers_exactly(network: ThreeLayers, row: ArrayLike) -> Fraction:
    """Evaluate a network of construction "yun" in rational arithmetic: the label, up to the rounding of the weights.

    Args:
        network: numbers of the network.
        row: (d,).
    """
    slopes, offsets, weights, biases = map(
        Dyadic.exactly, (network.slopes, network.offsets, network.weights, network.biases)
    )
    second = hard_tanh(hard_tanh(_project(network, row) * slopes + offsets) @ weights + biases)
    return Fraction(network.classes, 2) * second.sum().fractions()[0] - Fraction(1, 2)


def _project(network: Lookup | ThreeLayers, row: ArrayLike) -> Dyadic:
    """Return the position of a row on the line, (1,)."""
    return Dyadic.exactly(row) @ Dyadic.exactly(network.kernel[:, None]) + Dyadic.exactly([network.bias])


def _outputs(model: keras.Model) -> Outputs:
    construction = find_construction(model)
    if construction == "hardt-ma":
        return _residual(model)
    if construction == "yun":
        number = _chain(model, ["projection", "first", "second", "label"])
    else:
        number = _looked_up(model, packed=construction == "bit-extraction")
    one_hot = _chain(model, ["last_hidden", "last"])
    return lambda point: one_hot(number(point))


def _chain(model: keras.Model, names: list[str]) -> Outputs:
    layers = [dense(model, name) for name in names]

    def outputs(values: Dyadic) -> Dyadic:
        for layer in layers:
            values = layer(values)
        return values

    return outputs


def _looked_up(model: keras.Model, packed: bool) -> Outputs:
    """Return the exact function from a point to its label, as in `lookup_network`."""
    line, table, classes = (
        dense(model, "projection"),
        dense(model, "table"),
        find_layer(model, "label", SlotLabel).classes,
    )
    find_layer(model, "chunk", ChunkIndicator)
    (boundaries,) = map(Dyadic.exactly, read_weights(model, "chunk"))
    reader = find_layer(model, "bits", BitReader) if packed else None
    per_word, bits = (reader.per_word, reader.bits) if reader else (0, (0, 0))

    def rows(chunk: Dyadic) -> tuple[Dyadic, Dyadic]:
        row = table(chunk)
        return row[:1], row[1:]

    return lambda point: look_up(line(point), boundaries, rows, per_word, bits, classes)[1]


def _residual(model: keras.Model) -> Outputs:
    weights = residual_weights(model)
    blocks = ExactBlocks(weights.U, weights.s, weights.V)
    first, last = dense(model, "projection"), _chain(model, ["last_hidden", "last"])
    return lambda point: last(blocks.outputs(first(point)))


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return np.inf
