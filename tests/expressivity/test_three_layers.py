"""Tests of the three layers of Yun, Sra & Jadbabaie: accuracy, widths, rounding and radii."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idmatters_tf.expressivity import (
    construct_three_layers,
    evaluate_three_layers_exactly,
    memorize,
    verify,
)


def sample(n, d, classes, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), rng.integers(0, classes, n)


def in_plain_loops(network, row):
    """Evaluate the network unit by unit, with each hard-tanh as two ReLUs."""

    def hard_tanh(z):
        return max(z + 1, 0.0) - max(z - 1, 0.0) - 1

    t = sum(weight * value for weight, value in zip(network.kernel, row, strict=True)) + network.bias
    first = [hard_tanh(a * t + b) for a, b in zip(network.slopes, network.offsets, strict=True)]
    second = []
    for k, bias in enumerate(network.biases):
        before = bias
        for j, value in enumerate(first):
            before += network.weights[j, k] * value
        second.append(hard_tanh(before))
    return network.classes / 2 * sum(second) - 0.5


@pytest.mark.parametrize(("n", "classes"), [(1, 1), (2, 2), (3, 3), (11, 4), (60, 10)])
def test_the_sum_of_the_second_layer_is_the_label(n, classes):
    x, labels = sample(n, 3, classes)
    network = construct_three_layers(x, labels, classes, seed=0)
    for row, label in zip(x, labels, strict=True):
        assert in_plain_loops(network, row) == pytest.approx(label, abs=1e-9)
        assert float(evaluate_three_layers_exactly(network, row)) == pytest.approx(label, abs=1e-10)


def test_widths_and_parameters_of_the_theorem(tmp_path):
    x, labels = sample(4000, 8, 10)
    model = memorize(x, labels, construction="yun")
    widths = [model.get_layer(name).units for name in ("first", "second")]
    assert max(widths) <= 1.05 * np.sqrt(2 * 4000)
    assert widths[0] * widths[1] < 2.1 * 4000
    assert model.report.parameters == model.count_params() < 2.2 * 4000
    # The first layer with a weight for each input and unit.
    assert model.report.unshared - model.report.parameters == 8 * widths[0] + widths[0] - (8 + 1 + 2 * widths[0])
    model.save(tmp_path / "model.keras")
    found = verify(keras.saving.load_model(tmp_path / "model.keras"), x, labels)
    assert found.correct == 4000
    assert found.largest_error < 1e-3


@given(st.integers(0, 2**32 - 1), st.integers(1, 50), st.integers(1, 4), st.integers(1, 20))
@settings(max_examples=30, deadline=None)
def test_any_sample(seed, n, d, classes):
    rng = np.random.default_rng(seed)
    x = rng.choice([rng.standard_normal((n, d)), rng.integers(-3, 4, (n, d)), rng.standard_cauchy((n, d))])
    x = np.unique(x, axis=0)
    labels = rng.integers(0, classes, len(x))
    network = construct_three_layers(x, labels, classes, seed=1)
    first = np.clip((x @ network.kernel + network.bias)[:, None] * network.slopes + network.offsets, -1, 1)
    second = np.clip(first @ network.weights + network.biases, -1, 1)
    np.testing.assert_array_equal(np.round(classes / 2 * second.sum(axis=1) - 0.5), labels)


def test_points_of_any_size():
    x, labels = sample(30, 3, 4)
    for size in (1e-290, 1e290):
        assert verify(memorize(size * x, labels, 4, construction="yun"), size * x, labels).correct == 30


def test_radius_is_certified_and_tight():
    x, labels = sample(40, 4, 5, seed=3)
    network = construct_three_layers(x, labels, 5, seed=0)
    norm = np.linalg.norm(network.kernel)
    for row, label, radius in zip(x, labels, network.margin / norm, strict=True):
        beyond = []
        for sign in (-1, 1):
            step = sign * radius * network.kernel / norm
            assert round(in_plain_loops(network, row + 0.999 * step)) == label
            beyond.append(round(in_plain_loops(network, row + 1.01 * step)) != label)
        # The highest and lowest labels saturate on one side.
        assert any(beyond)


def test_excessive_rounding_raises():
    x, labels = sample(300, 2, 10)
    network = construct_three_layers(x, labels, 10, seed=0)
    assert 0 < network.rounding < 1e-3
    with pytest.raises(ValueError, match="float64 is not enough for .* in two layers"):
        construct_three_layers(x, labels, 10**16, seed=0)
    with pytest.raises(ValueError, match=r"float64 is not enough|to the same number"):
        memorize(x + 1e11, labels, construction="yun")
