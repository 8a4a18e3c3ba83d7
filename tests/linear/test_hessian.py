"""Loss, gradient and Hessian of n-shortcut and plain networks compared with data, differences and dense matrices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from idmatters_tf import linear
from tests.support.linear_cases import central_differences, random_covariance, random_data

SEEDS = st.integers(0, 2**32 - 1)


def network(seed):
    rng = np.random.default_rng(seed)
    units, n, d = rng.integers(1, 4), rng.integers(1, 4), rng.integers(1, 4)
    shortcut = bool(rng.integers(2))
    W = rng.normal(size=(units, n, d, d)) * (0.5 if shortcut else 1.0)
    return W, shortcut, *random_data(rng, d)


@given(SEEDS)
def test_loss_is_that_of_the_data(seed):
    W, shortcut, X, Y = network(seed)
    statistics = linear.sufficient_statistics(X, Y)
    outputs = X
    for unit in W:
        branch = outputs
        for layer in unit:
            branch = layer @ branch
        outputs = outputs + branch if shortcut else branch
    expected = np.sum((Y - outputs) ** 2) / (2 * X.shape[1])
    assert linear.shortcut_risk(W, *statistics, shortcut=shortcut) == pytest.approx(expected, rel=1e-10)


@given(SEEDS)
def test_extreme_shortcuts_are_those_of_plain_networks(seed):
    """Test Eq. 14 and Figure 4 of Li et al.: shortcuts of one layer, and one shortcut around all layers."""
    W, _, X, Y = network(seed)
    sxx, syx, _ = linear.sufficient_statistics(X, Y)
    for shortcuts, plain, targets in ((W[:, :1], W[:, :1] + np.eye(len(X)), syx), (W[:1], W[:1], syx - sxx)):
        gradient = linear.shortcut_gradient(plain, sxx, targets, shortcut=False)
        scale = np.abs(gradient).max() + np.abs(syx).max()
        found = linear.shortcut_gradient(shortcuts, sxx, syx)
        np.testing.assert_allclose(found, gradient, rtol=1e-12, atol=1e-12 * scale)


@given(SEEDS)
def test_gradient_and_hessian_against_central_differences(seed):
    W, shortcut, X, Y = network(seed)
    statistics = linear.sufficient_statistics(X, Y)

    def risk(W):
        return linear.shortcut_risk(W, *statistics, shortcut=shortcut)

    def gradient(W):
        return linear.shortcut_gradient(W, *statistics, shortcut=shortcut)

    # Loss and gradient have degree 2 in each entry, so that central differences are exact up to rounding.
    expected = central_differences(risk, W)
    np.testing.assert_allclose(gradient(W), expected, atol=1e-9 * (np.abs(expected).max() + risk(W)))
    expected = central_differences(gradient, W).reshape(W.size, W.size)
    H = linear.shortcut_hessian(W, statistics.sxx, statistics.syx, shortcut=shortcut)
    np.testing.assert_allclose(H, expected, atol=1e-9 * (np.abs(expected).max() + np.abs(gradient(W)).max()))
    np.testing.assert_array_equal(H, H.T)


@given(SEEDS)
def test_operator_against_the_dense_matrix(seed):
    W, shortcut, X, Y = network(seed)
    sxx, syx, _ = linear.sufficient_statistics(X, Y)
    H = linear.shortcut_hessian(W, sxx, syx, shortcut=shortcut)
    operator = linear.ShortcutHessian(W, sxx, syx, shortcut=shortcut)
    vectors = np.random.default_rng(seed).normal(size=(W.size, 3))
    tolerance = {"rtol": 1e-12, "atol": 1e-12 * np.abs(H).max() * W.size}
    np.testing.assert_allclose(operator @ vectors, H @ vectors, **tolerance)
    np.testing.assert_allclose(operator @ vectors[:, 0], H @ vectors[:, 0], **tolerance)
    np.testing.assert_allclose(operator.T @ vectors[:, 1], H @ vectors[:, 1], **tolerance)
    assert operator.shape == H.shape


@given(SEEDS, st.integers(1, 4), st.integers(2, 4))
def test_spectrum_at_zero_against_the_dense_matrix(seed, units, n):
    rng = np.random.default_rng(seed)
    d = rng.integers(1, 4)
    sxx, syx = random_covariance(rng, d), rng.normal(size=(d, d))
    expected = np.linalg.eigvalsh(linear.shortcut_hessian(np.zeros((units, n, d, d)), sxx, syx))
    spectrum = linear.zero_hessian_spectrum(units, n, sxx, syx)
    np.testing.assert_allclose(spectrum, expected, atol=1e-11 * max(np.abs(expected).max(), 1e-300))


@pytest.mark.parametrize("optimal", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_order_of_the_stationary_point_is_the_order_of_growth(n, optimal):
    rng = np.random.default_rng(n)
    sxx = np.eye(2)
    syx = sxx.copy() if optimal else rng.normal(size=(2, 2))
    direction = rng.normal(size=(2, n, 2, 2))
    order = linear.zero_stationary_order(n, sxx, syx)
    assert order == (2 * n - 1 if optimal else n - 1)

    def change(t):
        f = linear.shortcut_compose(t * direction) - np.eye(2)
        return np.vdot(f @ sxx, f) / 2 + np.vdot(f, sxx - syx)

    growth = np.log2(change(2e-3) / change(1e-3))
    assert growth == pytest.approx(order + 1, abs=0.05)
