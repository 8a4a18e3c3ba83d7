"""Verification of memorizers in rational arithmetic, from the weights of the Keras model."""

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
    dense,
    find_construction,
    residual_weights,
    slot_label,
)
from idmatters_tf.expressivity._samples import check_sample
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


def _outputs(model: keras.Model) -> Outputs:
    construction = find_construction(model)
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
    """Return the exact function from a point to its label, as in `lookup_network`."""
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
