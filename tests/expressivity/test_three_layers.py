"""Tests of the three layers of Yun, Sra & Jadbabaie: accuracy, widths and rounding."""

import numpy as np
import pytest

from idmatters_tf.expressivity import construct_three_layers, evaluate_three_layers_exactly, memorize
from tests.expressivity.exact_networks import sample


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


@pytest.mark.parametrize(("n", "classes"), [(1, 1), (2, 2), (11, 4), (60, 10)])
def test_the_sum_of_the_second_layer_is_the_label(n, classes):
    x, labels = sample(n, 3, classes)
    network = construct_three_layers(x, labels, classes, seed=0)
    for row, label in zip(x, labels, strict=True):
        assert in_plain_loops(network, row) == pytest.approx(label, abs=1e-9)
        assert float(evaluate_three_layers_exactly(network, row)) == pytest.approx(label, abs=1e-10)


def test_widths_and_parameters_of_the_theorem():
    x, labels = sample(4000, 8, 10)
    model = memorize(x, labels, construction="yun")
    widths = [model.get_layer(name).units for name in ("first", "second")]
    assert max(widths) <= 1.05 * np.sqrt(2 * 4000)
    assert widths[0] * widths[1] < 2.1 * 4000
    assert model.report.parameters == model.count_params() < 2.2 * 4000
    # The first layer with a weight for each input and unit.
    assert model.report.unshared - model.report.parameters == 8 * widths[0] + widths[0] - (8 + 1 + 2 * widths[0])
    assert model.report.verified["float64"].correct == 4000
    assert model.report.verified["float64"].largest_error < 1e-3


def test_excessive_rounding_raises():
    x, labels = sample(300, 2, 10)
    network = construct_three_layers(x, labels, 10, seed=0)
    assert 0 < network.rounding < 1e-3
    with pytest.raises(ValueError, match="float64 is not enough for .* in two layers"):
        construct_three_layers(x, labels, 10**16, seed=0)
    with pytest.raises(ValueError, match=r"float64 is not enough|to the same number"):
        memorize(x + 1e11, labels, construction="yun")
