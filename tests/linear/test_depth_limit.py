"""Random starts of deep residual networks, against their means."""

import numpy as np
import pytest

from idmatters_tf import linear


def test_mean_change_of_independent_starts():
    scales = [0.1, 0.25]
    changes = linear.signal_change(linear.depth_correlations("independent", 32), 16, scales, networks=800)
    for scale, change in zip(scales, changes, strict=True):
        assert abs(change.mean() - linear.expected_change(32, scale)) < 5 * change.std() / 800**0.5


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("kind", "parameter"), [("fractional", 0.8), ("fractional", 0.2), ("smooth", 0.3), ("equal", 0)]
)
def test_first_order_change(kind, parameter, layers):
    correlations = linear.depth_correlations(kind, 6, parameter)
    change = linear.signal_change(correlations, 16, [1e-4], layers=layers, networks=1000)[0] / 1e-8
    assert abs(change.mean() - linear.first_order_change(correlations, layers)) < 5 * change.std() / 1000**0.5


@pytest.mark.parametrize(
    ("kind", "parameter", "layers", "exponent"),
    [
        ("independent", 0, 2, 0.5),
        ("fractional", 0.2, 1, 0.2),
        ("fractional", 0.2, 2, 0.5),
        ("fractional", 0.8, 1, 0.8),
        ("smooth", 0.1, 2, 1.0),
        ("equal", 0, 2, 1.0),
    ],
)
def test_critical_exponents_of_the_depth(kind, parameter, layers, exponent):
    short, long = (
        linear.first_order_change(linear.depth_correlations(kind, depth, parameter), layers) for depth in (2048, 4096)
    )
    assert np.log2(long / short) / 2 == pytest.approx(exponent, abs=0.01)
