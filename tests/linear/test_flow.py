"""Gradient flow compared with closed forms and descent at small rates, conservation, and the edge of stability."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idmatters_tf import linear
from tests.support.linear_cases import random_data

SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, st.sampled_from([(1, True), (2, True), (3, True), (2, False)]))
@settings(max_examples=20, deadline=None)
def test_flow_conserves_balance_and_loses_risk(seed, kind):
    n, shortcut = kind
    rng = np.random.default_rng(seed)
    X, Y = random_data(rng, 3)
    moments = linear.sufficient_statistics(X, Y)[:2]
    W = rng.normal(size=(2, n, 3, 3)) / 2
    flow = linear.gradient_flow(W, *moments, np.linspace(0, 1, 5), shortcut)
    assert (flow.balance_drift <= 1e-7 * (1 + np.abs(flow.weights).max() ** 2)).all()
    assert (np.diff(flow.excess_risk) <= 1e-9 * flow.excess_risk[0]).all()
    np.testing.assert_array_equal(flow.weights[0], W)
    for weights, excess in zip(flow.weights, flow.excess_risk, strict=True):
        assert excess == pytest.approx(linear.excess_risk(weights, *moments, shortcut), rel=1e-9, abs=1e-14)


def test_flow_of_one_layer_is_the_matrix_exponential():
    rng = np.random.default_rng(0)
    S = np.diag([2.0, 1.0, 0.5])
    R, W = rng.normal(size=(2, 3, 3))
    times = np.array([0.0, 0.3, 2.0])
    flow = linear.gradient_flow(W[None, None], S, R @ S, times, shortcut=False)
    for time, found in zip(times, flow.weights, strict=True):
        np.testing.assert_allclose(found[0, 0], R + (W - R) * np.exp(-np.diag(S) * time), atol=1e-8)


def test_flow_of_two_scalar_layers_is_the_logistic_curve():
    # Balanced layers: u = w^2 has du/dt = -2 u (u - r), the logistic equation.
    r, start, times = 3.0, 0.2, np.linspace(0, 2, 7)
    W = np.full((2, 1, 1, 1), np.sqrt(start))
    flow = linear.gradient_flow(W, [[1.0]], [[r]], times, shortcut=False)
    u = r / (1 + (r / start - 1) * np.exp(-2 * r * times))
    np.testing.assert_allclose(flow.weights[:, 0, 0, 0, 0] ** 2, u, rtol=1e-8)


@pytest.mark.parametrize(("shortcut", "n"), [(True, 1), (False, 2)])
def test_descent_with_a_small_rate_follows_the_flow_to_first_order(shortcut, n):
    rng = np.random.default_rng(3)
    W, R = rng.normal(size=(2, n, 2, 2)) / 2, rng.normal(size=(2, 2))
    distances = []
    for rate in (0.02, 0.01):
        steps = round(1 / rate)
        found = linear.descent_against_flow(W, np.eye(2), R, rate, 2 * steps, shortcut, record_every=steps)
        distances.append(found.distance[1])
        assert found.steps.tolist() == [0, steps, 2 * steps]
        assert found.left_at == -1
        assert found.limit == 2 / rate
    assert distances[0] / distances[1] == pytest.approx(2, rel=0.15)


def test_descent_leaves_the_flow_where_the_sharpness_reaches_the_limit():
    W = np.full((2, 1, 1, 1), 1.0)
    small, large = (linear.descent_against_flow(W, [[1.0]], [[4.0]], rate, 60, shortcut=False) for rate in (0.05, 0.26))
    # At the optimum w^2 = 4 the Hessian [[4, 4], [4, 4]] has the eigenvalue 8: 0.25 is the largest stable rate.
    assert small.left_at == -1
    assert small.sharpness[-1] == pytest.approx(8, rel=1e-6)
    assert small.sharpness.max() < small.limit
    assert large.left_at > 0
    assert linear.descent_against_flow(W, [[1.0]], [[4.0]], 1e6, 9, shortcut=False).steps.tolist() == [0]
    assert large.sharpness.max() > large.limit


@pytest.mark.parametrize(("units", "n", "d", "shortcut"), [(2, 2, 3, True), (5, 1, 10, False)])
def test_sharpness_is_the_largest_eigenvalue(units, n, d, shortcut):
    rng = np.random.default_rng(1)
    W, R = rng.normal(size=(units, n, d, d)) / d, rng.normal(size=(d, d))
    expected = np.linalg.eigvalsh(linear.shortcut_hessian(W, np.eye(d), R, shortcut))[-1]
    assert linear.sharpness(W, np.eye(d), R, shortcut) == pytest.approx(expected, rel=1e-8)


def test_balance_by_plain_loops():
    W = np.random.default_rng(2).normal(size=(3, 2, 2, 2))
    plain = W.reshape(6, 2, 2)
    expected = [plain[j + 1].T @ plain[j + 1] - plain[j] @ plain[j].T for j in range(5)]
    np.testing.assert_allclose(linear.balance_defects(W, shortcut=False), expected)
    np.testing.assert_allclose(linear.balance_defects(W), expected[::2])
    residual = np.eye(2) + W[:, 0]
    expected = [residual[j + 1].T @ residual[j + 1] - residual[j] @ residual[j].T for j in range(2)]
    np.testing.assert_allclose(linear.balance_defects(W[:, :1]), expected)
    assert linear.balancedness(W[:, :1]) == pytest.approx(max(np.linalg.norm(one) for one in expected))
    assert linear.balancedness(W[:1, :1], shortcut=False) == 0
