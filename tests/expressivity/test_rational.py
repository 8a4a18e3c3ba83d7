"""Tests of rational arithmetic on saved models of every construction, and on a model with damaged weights."""

from fractions import Fraction

import keras
import numpy as np
import pytest

from idmatters_tf.expressivity import memorize, verify_exactly


def sample(n, d, classes, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), rng.integers(0, classes, n)


@pytest.mark.parametrize("construction", ["hardt-ma", "yun", "lookup", "bit-extraction"])
def test_every_row_of_the_saved_model(construction, tmp_path):
    x, labels = sample(60, 3, 6)
    width = {"width": 7} if construction == "hardt-ma" else {}
    memorize(x, labels, construction=construction, **width).save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    found = verify_exactly(model, x, labels)
    assert (found.rows, found.correct) == (60, 60)
    if construction in ("lookup", "bit-extraction"):
        assert found.largest_error == 0
    else:
        assert 0 < found.largest_error < 1e-8
    wrong = labels.copy()
    wrong[[4, 9]] = (wrong[[4, 9]] + 1) % 6
    assert verify_exactly(model, x, wrong).wrong_rows == (4, 9)


def test_the_residual_network_in_fractions_equals_plain_loops():
    x, labels = sample(9, 2, 3)
    # A distant point, which requires a bias, and one outside the sample.
    x[0] = 0
    model = memorize(x, labels, 3, width=4)
    (A, *b), (U, s, V) = ([np.asarray(w) for w in model.get_layer(name).weights] for name in ("projection", "blocks"))
    (last_U, last_s), (last_V,) = (
        [np.asarray(w) for w in model.get_layer(name).weights] for name in ("last_hidden", "last")
    )
    assert b

    def affine(values, kernel, bias):
        out = []
        for column in range(kernel.shape[1]):
            total = Fraction(float(bias[column]))
            for value, weight in zip(values, kernel[:, column], strict=True):
                total += value * Fraction(float(weight))
            out.append(total)
        return out

    def relu(values):
        return [max(value, Fraction(0)) for value in values]

    largest = Fraction(0)
    for row, label in zip(x, labels, strict=True):
        h = affine([Fraction(float(value)) for value in row], A, b[0])
        for block in range(len(U)):
            moves = affine(relu(affine(h, U[block], s[block])), V[block], np.zeros(4))
            h = [value + move for value, move in zip(h, moves, strict=True)]
        outputs = affine(relu(affine(h, last_U, last_s)), last_V, np.zeros(3))
        largest = max(largest, *(abs(value - (c == label)) for c, value in enumerate(outputs)))
    assert verify_exactly(model, x, labels).largest_error == float(largest)


def test_other_models_raise():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    with pytest.raises(ValueError, match="must be built by `memorize`"):
        verify_exactly(model, np.eye(2), np.array([0, 1]))
