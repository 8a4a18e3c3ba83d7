"""Second moments, optima, and gradient descent of many networks compared with single networks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from idmatters_tf import linear
from tests.support.linear_cases import random_data

SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS)
def test_optimum_is_where_the_gradient_vanishes(seed):
    rng = np.random.default_rng(seed)
    X, Y = random_data(rng, rng.integers(1, 5))
    W, loss = linear.least_squares_optimum(X, Y)
    np.testing.assert_allclose((W @ X - Y) @ X.T, 0, atol=1e-10 * X.size)
    assert loss == pytest.approx(np.sum((Y - W @ X) ** 2) / (2 * X.shape[1]), rel=1e-10, abs=1e-28)


def test_minimum_loss_does_not_cancel():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3, 50))
    Y = 1e6 * rng.normal(size=(3, 3)) @ X
    noise = rng.normal(size=Y.shape)
    noise -= noise @ np.linalg.pinv(X) @ X
    expected = 1e-12 * np.sum(noise**2) / 100
    assert linear.least_squares_optimum(X, 1e-3 * Y + 1e-6 * noise)[1] == pytest.approx(expected, rel=1e-3)


@given(SEEDS)
def test_whitened_data_are_scaled_principal_components(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(4, 4)) @ rng.normal(size=(4, 30)) + 5
    whitened, transform, mean = linear.whiten(X, 3)
    np.testing.assert_allclose(whitened, transform @ (X - mean), atol=1e-9 * np.abs(transform).max())
    np.testing.assert_allclose(whitened @ whitened.T / 30, np.eye(3), atol=1e-9)
    rows = np.sqrt(30) * np.linalg.svd(X - X.mean(axis=1, keepdims=True))[2][:3]
    np.testing.assert_allclose(np.abs(whitened), np.abs(rows), atol=1e-9)
    for scale in (2.0**-600, 2.0**600):
        for result, expected in zip(
            linear.whiten(scale * X, 3), (whitened, transform / scale, mean * scale), strict=True
        ):
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(("shortcut", "samples"), [(True, 2), (False, 30)])
def test_many_networks_equal_single_networks(shortcut, samples):
    rng = np.random.default_rng(samples)
    X, Y = random_data(rng, 3, samples)
    sxx, syx, trace = linear.sufficient_statistics(X, Y)
    minimum = linear.least_squares_optimum(X, Y)[1]
    W = rng.normal(size=(4, 2, 2, 3, 3)) / 3
    rates = np.array([0.01, 0.02, 0.05, 0.1])
    trajectories = linear.gradient_descent(W, sxx, syx, rates, 25, shortcut=shortcut, record_every=10)
    assert trajectories.steps.tolist() == [0, 10, 20, 25]
    for one, rate, k in zip(W.copy(), rates, range(4), strict=True):
        for step in range(26):
            gradient = linear.shortcut_gradient(one, sxx, syx, shortcut=shortcut)
            if step in trajectories.steps:
                record = trajectories.steps.tolist().index(step)
                risk = linear.shortcut_risk(one, sxx, syx, trace, shortcut=shortcut)
                assert trajectories.excess_risk[k, record] + minimum == pytest.approx(risk, rel=1e-9)
                assert trajectories.gradient_norm[k, record] == pytest.approx(np.linalg.norm(gradient), rel=1e-9)
                norms = [[np.linalg.norm(layer, 2) for layer in unit] for unit in one]
                np.testing.assert_allclose(trajectories.layer_norms[k, record], norms)
                branches = [unit[1] @ unit[0] - (0 if shortcut else np.eye(3)) for unit in one]
                tau = max(np.linalg.norm(branch, 2) for branch in branches)
                assert trajectories.tau[k, record] == pytest.approx(tau)
                assert trajectories.inside[k, record] == (tau < 1)
            if step < 25:
                one = one - rate * gradient
        np.testing.assert_allclose(trajectories.weights[k], one, rtol=1e-9, atol=1e-12)
    assert (trajectories.diverged_at == -1).all()


def test_divergence_does_not_affect_other_networks():
    W = linear.initial_weights("small", 3, 2, 2, seed=1, networks=4)
    rates = np.array([0.05, 1e9, 0.05, 30.0])
    problem = np.eye(2), np.diag([2.0, 0.5])
    together = linear.gradient_descent(W, *problem, rates, 300)
    alone = linear.gradient_descent(W[[0, 2]], *problem, 0.05, 300)
    np.testing.assert_array_equal(together.excess_risk[[0, 2]], alone.excess_risk)
    np.testing.assert_array_equal(together.weights[[0, 2]], alone.weights)
    assert (together.diverged_at[[0, 2]] == -1).all()
    assert (together.diverged_at[[1, 3]] > 0).all()
    for k in (1, 3):
        first = together.diverged_at[k]
        assert np.isfinite(together.excess_risk[k, :first]).all()
        assert np.isnan(together.excess_risk[k, first:]).all()
        assert np.isnan(together.weights[k]).all()
        assert not together.inside[k, first:].any()


@pytest.mark.parametrize("workers", [None, 2])
def test_sweep_combines_every_start_with_every_rate(workers):
    problem = np.eye(3), np.diag([2.0, 1.0, 0.5])
    starts = {
        ("2-shortcut", 4): (linear.initial_weights("small", 2, 2, 3, networks=3), True),
        ("orthogonal", 5): (linear.initial_weights("orthogonal", 5, 1, 3, networks=2), False),
    }
    rates = [0.01, 0.1]
    trajectories = linear.sweep(starts, *problem, rates, 30, record_every=30, workers=workers)
    assert list(trajectories) == list(starts)
    for name, (W, shortcut) in starts.items():
        for k, rate in enumerate(rates):
            alone = linear.gradient_descent(W, *problem, rate, 30, shortcut=shortcut, record_every=30)
            np.testing.assert_allclose(trajectories[name].excess_risk[:, k], alone.excess_risk)
            np.testing.assert_allclose(trajectories[name].weights[:, k], alone.weights)


def test_initial_weights_have_their_distributions():
    W = linear.initial_weights("orthogonal", 2, 1, 4, seed=3, networks=5)
    np.testing.assert_allclose(W @ W.swapaxes(-1, -2), np.broadcast_to(np.eye(4), W.shape), atol=1e-13)
    xavier, small = (linear.initial_weights(kind, 50, 2, 10, seed=3) for kind in ("xavier", "small"))
    np.testing.assert_allclose(small, 0.01 * xavier)
    assert xavier.std() == pytest.approx(10**-0.5, rel=0.03)
