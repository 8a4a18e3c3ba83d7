"""Memorisers in rational arithmetic: what a network computes without any rounding, read from the Keras model itself."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmatters_tf.expressivity.lookup import Lookup, evaluate_exactly
from idmatters_tf.expressivity.samples import checked
from idmatters_tf.expressivity.three_layers import ThreeLayers, evaluate_three_layers_exactly
from idmatters_tf.expressivity.verification import Verification

Outputs = Callable[[NDArray[Any]], list[Fraction]]


def verify_exactly(
    model: keras.Model,
    x: ArrayLike,
    labels: ArrayLike,
    progress: Callable[[int, int], object] | None = None,
) -> Verification:
    """Runs every row through the model's weights in rational arithmetic, and compares with the one-hot vectors.

    A float is a rational number, and so is everything that a network of ReLUs computes from floats. What is verified is
    the network as a function, whatever order a machine adds in; `verify` is about the machine. For samples of some
    hundreds or thousands of rows.

    Args:
        model: from `memorize`, or loaded from a file; float64 or float32.
        x, labels: as `memorize` takes them.
        progress: called with (rows done, n).

    Returns:
        A `Verification`; a row that is right without any error contributes an exact 0 to `largest_error`.
    """
    x, labels, _ = checked(x, labels, model.output_shape[-1])
    x = x.astype(model.inputs[0].dtype)
    outputs = _outputs(model)
    correct, largest, wrong = 0, Fraction(0), []
    for row, (point, label) in enumerate(zip(x, labels, strict=True)):
        found = outputs(point)
        if sum(value >= found[label] for value in found) == 1:
            correct += 1
        else:
            wrong.append(row)
        error = max(abs(value - (number == label)) for number, value in enumerate(found))
        largest = max(largest, error)
        if progress is not None:
            progress(row + 1, len(x))
    return Verification(len(x), correct, float(largest), tuple(wrong[:10]))


def _outputs(model: keras.Model) -> Outputs:
    names = {layer.name for layer in model.layers}
    if "blocks" in names:
        return _residual(model)
    if "table" in names:
        return _looked_up(lookup_of(model))
    if "second" in names:
        network = three_layers_of(model)
        return lambda row: _one_hot(evaluate_three_layers_exactly(network, row), network.classes)
    raise ValueError(f"Argument `model` must be made by `memorize`. Received: layers {sorted(names)}")


def _looked_up(lookup: Lookup) -> Outputs:
    def outputs(row: NDArray[Any]) -> list[Fraction]:
        try:
            number = evaluate_exactly(lookup, row)[0]
        except ValueError:
            # On an edge between two labels: neither.
            return [Fraction(0)] * lookup.classes
        return _one_hot(Fraction(number), lookup.classes)

    return outputs


def _one_hot(number: Fraction, classes: int) -> list[Fraction]:
    return [max(Fraction(0), 1 - abs(number - name)) for name in range(classes)]


def lookup_of(model: keras.Model) -> Lookup:
    """The numbers of a model of construction="lookup" or "bit-extraction", from its weights; its margins are empty."""
    kernel, bias = _weights(model, "projection")
    (boundaries,), (table,) = _weights(model, "chunk"), _weights(model, "table")
    classes = model.get_layer("label").classes
    label_bits = max(1, int(classes - 1).bit_length())
    numbers = np.array([[int(value) for value in row[1:]] for row in table], object)
    if any(layer.name == "bits" for layer in model.layers):
        reader = model.get_layer("bits")
        per_word, (threshold_bits, label_bits) = reader.per_word, reader.bits
        bits = threshold_bits + label_bits
        fields = np.array(
            [[word >> bits * slot for word in row for slot in reversed(range(per_word))] for row in numbers], object
        ) & ((1 << bits) - 1)
        thresholds, labels = fields >> label_bits, fields & ((1 << label_bits) - 1)
    else:
        per_word, slots = 0, numbers.shape[1] // 2
        thresholds, labels = numbers[:, :slots], numbers[:, slots:]
        threshold_bits = int(thresholds.max()).bit_length()
    return Lookup(
        kernel[:, 0],
        float(bias[0]),
        boundaries,
        thresholds,
        labels,
        classes,
        threshold_bits,
        label_bits,
        per_word,
        margin=np.empty(0),
    )


def three_layers_of(model: keras.Model) -> ThreeLayers:
    """The numbers of a model of construction="yun", from its weights; its margins are empty."""
    kernel, bias = _weights(model, "projection")
    slopes, offsets = _weights(model, "first")
    weights, biases = _weights(model, "second")
    classes = model.output_shape[-1]
    return ThreeLayers(kernel[:, 0], float(bias[0]), slopes[0], offsets, weights, biases, classes, margin=np.empty(0))


def _residual(model: keras.Model) -> Outputs:
    """The blocks in integers: every float is an integer times a power of two."""
    projection, *bias = _weights(model, "projection")
    U, s, V = _weights(model, "blocks")
    width = U.shape[2]
    A, a = _dyadic(projection)
    b = [Fraction(float(value)) for value in bias[0]] if bias else [Fraction(0)] * width
    units, u = _dyadic(U.transpose(1, 0, 2).reshape(U.shape[1], -1))
    thresholds = [Fraction(float(value)) for value in s.ravel()]
    (last_U, last_s), (last_V,) = _weights(model, "last_hidden"), _weights(model, "last")

    def outputs(row: NDArray[Any]) -> list[Fraction]:
        x, e = _dyadic(row.astype(np.float64))
        h = [Fraction(int(value), 2 ** (e + a)) + shift for value, shift in zip(x @ A, b, strict=True)]
        block = 0
        while block < len(U):
            exponent = max(value.denominator for value in h).bit_length() - 1
            ints = np.array([int(value * 2**exponent) for value in h], object)
            before = ints @ units[:, block * width :]
            scale = 2 ** (exponent + u)
            here = next(
                (number for number, value in enumerate(before) if value > -thresholds[block * width + number] * scale),
                None,
            )
            if here is None:
                break
            block += here // width
            first = here // width * width
            fires = {
                unit: relu
                for unit in range(width)
                if (relu := Fraction(int(before[first + unit]), scale) + thresholds[block * width + unit]) > 0
            }
            h = [
                value + sum((relu * Fraction(float(V[block, unit, k])) for unit, relu in fires.items()), Fraction(0))
                for k, value in enumerate(h)
            ]
            block += 1
        hidden = [max(value, Fraction(0)) for value in _affine(h, last_U, last_s)]
        return _affine(hidden, last_V, np.zeros(last_V.shape[1]))

    return outputs


def _affine(values: list[Fraction], kernel: NDArray[np.float64], bias: NDArray[np.float64]) -> list[Fraction]:
    return [
        sum((value * Fraction(float(weight)) for value, weight in zip(values, column, strict=True)), Fraction(shift))
        for column, shift in zip(kernel.T, map(float, bias), strict=True)
    ]


def _dyadic(array: NDArray[np.float64]) -> tuple[NDArray[Any], int]:
    """Integers (objects) and an exponent e of 0 or more, with array = integers / 2^e."""
    mantissas, exponents = np.frexp(array)
    shifts = exponents.astype(int) - 53
    lowest = min(int(shifts[mantissas != 0].min(initial=0)), 0)
    flat = [
        int(mantissa * 2.0**53) << (shift - lowest) if mantissa else 0
        for mantissa, shift in zip(mantissas.ravel(), shifts.ravel().tolist(), strict=True)
    ]
    integers = np.empty(len(flat), object)
    integers[:] = flat
    return integers.reshape(array.shape), -lowest


def _weights(model: keras.Model, layer: str) -> list[NDArray[np.float64]]:
    return [np.asarray(keras.ops.convert_to_numpy(one), np.float64) for one in model.get_layer(layer).weights]
