"""Samples, and memorizers in plain rational arithmetic, an oracle that shares no code with the package."""

import itertools
from fractions import Fraction

import numpy as np


def sample(n, d, classes, seed=0):
    """Draw normal points (n, d) and random labels."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), rng.integers(0, classes, n)


def rational(array):
    """Convert an array to nested lists of fractions."""
    array = np.asarray(array)
    if not array.ndim:
        return Fraction(int(array)) if array.dtype.kind in "iu" else Fraction(float(array))
    return [rational(part) for part in array]


def relu(values):
    return [max(value, Fraction(0)) for value in values]


def hard_tanh(values):
    return [min(max(value, Fraction(-1)), Fraction(1)) for value in values]


def affine(values, kernel, bias=None):
    shifts = bias or [Fraction(0)] * len(kernel[0])
    return [
        sum((value * row[unit] for value, row in zip(values, kernel, strict=True)), shift)
        for unit, shift in enumerate(shifts)
    ]


def steps(starts, value):
    """Compute relu(1 - 8 relu(start - value)) and differences of neighbors."""
    reached = [*relu([1 - 8 * max(start - value, 0) for start in starts]), Fraction(0)]
    return relu([one - other for one, other in itertools.pairwise(reached)])


def weights_of(model):
    """Return all weights by layer, as nested lists of fractions."""
    return {layer.name: [rational(weight) for weight in layer.get_weights()] for layer in model.layers if layer.weights}


def outputs(model, row):
    """Return the exact outputs of a memorizer of any construction on a row."""
    weights = weights_of(model)
    h = affine(rational(row), *weights["projection"])
    if "blocks" in weights:
        for U, s, V in zip(*weights["blocks"], strict=True):
            h = [one + move for one, move in zip(h, affine(relu(affine(h, U, s)), V), strict=True)]
    elif "first" in weights:
        h = hard_tanh(affine(hard_tanh(affine(h, *weights["first"])), *weights["second"]))
        h = affine(h, *weights["label"])
    else:
        start, *numbers = affine(steps(weights["chunk"][0], h[0]), *weights["table"])
        thresholds, labels = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
        if any(layer.name == "bits" for layer in model.layers):
            thresholds, labels = read_bits(numbers, model.get_layer("bits"))
        here, classes = steps(thresholds, h[0] - start), model.get_layer("label").classes
        h = [sum(relu([name - classes * (1 - one) for name, one in zip(labels, here, strict=True)]), Fraction(0))]
    h = relu(affine(h, *weights["last_hidden"]))
    last = affine(h, *weights["last"])
    return last if "blocks" in weights else relu(last)


def read_bits(words, reader):
    total = reader.per_word * sum(reader.bits)
    thresholds, labels = [], []
    for y in words:
        for _ in range(reader.per_word):
            for fields, count in zip((thresholds, labels), reader.bits, strict=True):
                field = Fraction(0)
                for _ in range(count):
                    bit = max(1 - max(2 ** (total - 1) - y, 0), Fraction(0))
                    y, field = 2 * y - 2**total * bit, 2 * field + bit
                fields.append(field)
    return thresholds, labels


def squared_radius(weights, row):
    """Compute the squared distance to the nearest change of an activation or the answer, by forward differentiation.

    Each number is carried with its gradient with respect to the row; None where nothing ever changes.
    """
    size = len(row)
    identity = [[Fraction(int(i == j)) for j in range(size)] for i in range(size)]
    distances = []

    def layer(points, kernel, bias=None):
        values = affine([value for value, _ in points], kernel, bias)
        columns = list(zip(*kernel, strict=True))
        return [
            (value, [sum(g[i] * weight for (_, g), weight in zip(points, column, strict=True)) for i in range(size)])
            for value, column in zip(values, columns, strict=True)
        ]

    def reach(value, gradient):
        length = sum(part * part for part in gradient)
        if length:
            distances.append(value**2 / length)

    def fired(points):
        for point in points:
            reach(*point)
        return [(value, g) if value > 0 else (Fraction(0), [Fraction(0)] * size) for value, g in points]

    h = layer(
        list(zip(rational(row), identity, strict=True)),
        rational(weights.projection),
        None if weights.bias is None else rational(weights.bias),
    )
    for U, s, V in zip(rational(weights.U), rational(weights.s), rational(weights.V), strict=True):
        moves = layer(fired(layer(h, U, s)), V)
        h = [(a + b, [p + q for p, q in zip(g, m, strict=True)]) for (a, g), (b, m) in zip(h, moves, strict=True)]
    last = layer(fired(layer(h, rational(weights.last_U), rational(weights.last_s))), rational(weights.last_V))
    best = max(range(len(last)), key=lambda number: last[number][0])
    for number, (value, gradient) in enumerate(last):
        if number != best:
            lead = last[best][0] - value
            if not lead:
                return Fraction(0)
            reach(lead, [p - q for p, q in zip(last[best][1], gradient, strict=True)])
    return min(distances, default=None)
