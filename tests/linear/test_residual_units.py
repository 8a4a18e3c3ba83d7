"""Small nonlinear residual networks: derivatives, critical points, and closed forms."""

import numpy as np
import pytest

from idmatters_tf import linear


@pytest.mark.parametrize("is_linear", [False, True])
def test_derivatives_are_those_of_differences(is_linear):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(3, 20)), rng.normal(size=20)
    network = linear.ResidualNetwork(3, 2, 2, linear=is_linear)
    theta = 0.5 * rng.normal(size=network.parameters)
    shifts = 1e-6 * np.eye(network.parameters)
    gradient = (network.risk(theta + shifts, X, y) - network.risk(theta - shifts, X, y)) / 2e-6
    np.testing.assert_allclose(network.gradient(theta, X, y), gradient, atol=1e-8)
    hessian = (network.gradient(theta + shifts, X, y) - network.gradient(theta - shifts, X, y)) / 2e-6
    np.testing.assert_allclose(network.hessian(theta, X, y), hessian, atol=1e-8)


@pytest.mark.parametrize(("blocks", "smallest"), [(1, -1), (2, 0), (3, 0)])
def test_both_conditions_cannot_be_dropped(blocks, smallest):
    """Linear blocks I + V U = 0 with U = I, V = -I and w = 0, Hardt & Ma's A_i = -I, are critical and bad."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3, 20))
    y = X[0] + 0.1 * rng.normal(size=20)
    network = linear.ResidualNetwork(3, blocks, 3, linear=True)
    theta = np.concatenate([np.tile([np.eye(3), -np.eye(3)], (blocks, 1, 1)).ravel(), np.zeros(3)])
    assert np.linalg.norm(network.gradient(theta, X, y)) == 0
    assert network.risk(theta, X, y) > 10 * linear.linear_predictor(X, y).risk
    assert np.sign(round(np.linalg.eigvalsh(network.hessian(theta, X, y))[0], 9)) == smallest


def test_critical_points_are_better_than_linear_or_saddles():
    network = linear.ResidualNetwork(4, 2, 1)
    rng = np.random.default_rng(0)
    found = above = 0
    for _ in range(12):
        X = rng.normal(size=(4, 25))
        y = np.abs(X[0]) + 0.3 * rng.normal(size=25)
        point = linear.critical_point(network, rng.normal(size=network.parameters), X, y, steps=60)
        if point.gradient_norm <= 1e-9:
            assert (point.feature_rank, point.covered_rank) == (4, 2)
            found += 1
            above += point.risk > point.linear_risk * (1 + 1e-9)
            assert point.risk <= point.linear_risk * (1 + 1e-9) or point.smallest_eigenvalue < -1e-8
    assert found > 5
    assert above > 0
