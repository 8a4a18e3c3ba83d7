"""Descent between fixed input and output maps, against a closed form and the residual network."""

import numpy as np
import pytest

from idmatters_tf import linear


def test_one_layer_decreases_by_its_closed_form():
    maps = linear.identity_maps(2, 3, scale=1.5)
    R = np.random.default_rng(0).normal(size=(1, 3, 2))
    rate = linear.fixed_maps_rate(maps, 1, R[0])
    losses = linear.fixed_maps_descent(maps, R, 1, rate, 8).losses[:, 0]
    np.testing.assert_allclose(losses, losses[0] * (1 - rate * 1.5**4) ** (2 * np.arange(9)), rtol=1e-10)


def test_square_identity_maps_give_descent_of_the_residual_network():
    R = np.random.default_rng(1).normal(size=(2, 3, 3))
    maps = linear.FixedMaps(np.eye(3), np.eye(3))
    ours = linear.fixed_maps_descent(maps, R, 4, [0.01, 0.02], 20)
    for number, rate in enumerate((0.01, 0.02)):
        theirs = linear.gradient_descent(np.zeros((1, 4, 1, 3, 3)), np.eye(3), R[number], rate, 20)
        np.testing.assert_allclose(ours.losses[:, number], theirs.excess_risk[0], rtol=1e-12)


@pytest.mark.parametrize("depth", [1, 2, 16])
def test_targets_that_the_identity_start_misses_are_reached(depth):
    R = np.array([np.diag([1.0, -2.0]), np.diag([-1.0, -0.5]), [[0.0, -1.0], [1.0, 0.0]]])
    maps = linear.identity_maps(2, 2)
    rates = np.array([linear.fixed_maps_rate(maps, depth, matrix) for matrix in R]) / 4
    history = linear.fixed_maps_descent(maps, R, depth, rates, 500, goal=1e-8)
    assert (history.steps > 0).all()
    for number, steps in enumerate(history.steps):
        losses = history.losses[: steps + 1, number]
        assert (losses[1:] <= losses[:-1] * linear.fixed_maps_factor(maps, depth, rates[number])).all()


def test_maps_have_their_width_and_scale():
    C, B = linear.identity_maps(2, 3, 7, scale=2.0)
    assert not (B @ C).any()
    np.testing.assert_allclose(np.linalg.norm(C, axis=0), 2)
    C, B = linear.gaussian_maps(2, 3, 4000, scale=2.0, seed=1)
    np.testing.assert_allclose(np.linalg.svd(B, compute_uv=False), 2, rtol=0.1)


def test_a_large_rate_diverges_without_an_error():
    maps = linear.identity_maps(2, 2)
    history = linear.fixed_maps_descent(maps, -10 * np.eye(2)[None], 8, 1.0, 50)
    assert history.steps.tolist() == [-1]
    assert np.isnan(history.tau).all()
