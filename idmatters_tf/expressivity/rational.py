"""Memorisers in rational arithmetic: the outputs of a network without any rounding, from the Keras model itself."""

from collections.abc import Callable
from fractions import Fraction

import keras
import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf.expressivity._dyadic import Dyadic
from idmatters_tf.expressivity._exact_blocks import ExactBlocks
from idmatters_tf.expressivity._exact_layers import (
    bit_reader,
    chunk_indicator,
    construction_of,
    dense,
    residual_weights,
    slot_label,
)
from idmatters_tf.expressivity._samples import checked
from idmatters_tf.expressivity.verification import Verification

Outputs = Callable[[Dyadic], Dyadic]


def verify_exactly(
    model: keras.Model,
    x: ArrayLike,
    labels: ArrayLike,
    progress: Callable[[int, int], object] | None = None,
) -> Verification:
    """Run every row through the model's weights in rational arithmetic, and compare with the one-hot vectors.

    A float is a rational number, and so are all numbers that a network of ReLUs computes from floats. The network is
    verified as a function, whatever the order in which a machine adds; `verify` is about the machine. Every layer's
    weights and activation are read from the model. For samples of some hundreds or thousands of rows.

    Args:
        model: from `memorize`, or loaded from a file; float64 or float32.
        x, labels: as `memorize` takes them.
        progress: called with (rows done, n).

    Returns:
        A `Verification`; a row is correct where its label's output is larger than all others, and a row without any
        error contributes an exact 0 to `largest_error`.

    Raises:
        ValueError: for a model that `memorize` does not make, NaN or infinite weights, and rows that are infinite in
            the model's dtype.
    """
    x, labels, _ = checked(x, labels, model.output_shape[-1])
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


def _outputs(model: keras.Model) -> Outputs:
    construction = construction_of(model)
    if construction == "hardt-ma":
        return _residual(model)
    layers = ["projection", "first", "second", "label"] if construction == "yun" else []
    number = _chain(model, layers) if layers else _looked_up(model, packed=construction == "bit-extraction")
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
    """The number of the label, as `lookup_network` computes it."""
    line, chunk, table = dense(model, "projection"), chunk_indicator(model, "chunk"), dense(model, "table")
    read, label = bit_reader(model, "bits") if packed else _halves, slot_label(model, "label")

    def outputs(point: Dyadic) -> Dyadic:
        t = line(point)
        row = table(chunk(t))
        return label(t - row[:1], *read(row[1:]))

    return outputs


def _halves(values: Dyadic) -> tuple[Dyadic, Dyadic]:
    half = len(values.integers) // 2
    return values[:half], values[half:]


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
