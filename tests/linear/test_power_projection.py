"""Balanced and projected descent compared with plain loops, and the projection with a search."""

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from idmatters_tf import linear
from tests.support.linear_cases import random_matrix

SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, st.integers(1, 5), st.floats(-2, 2))
@settings(max_examples=40, deadline=None)
def test_the_projection_is_the_nearest_feasible_matrix(seed, d, gamma):
    rng = np.random.default_rng(seed)
    M = rng.normal(size=(d, d)) * 2
    X = linear.project_to_positive(M, gamma)
    assert linear.positivity(X) >= gamma - 1e-10
    # The variational inequality of projections on convex sets, for random feasible matrices.
    for _ in range(20):
        S = rng.normal(size=(d, d))
        feasible = S @ S.T + gamma * np.eye(d)
        A = rng.normal(size=(d, d))
        feasible += A - A.T
        assert np.vdot(M - X, feasible - X) <= 1e-9 * (1 + np.abs(M).max()) * (1 + np.abs(feasible).max())
    if linear.positivity(M) >= gamma:
        np.testing.assert_allclose(X, M, atol=1e-12)


def test_positivity_is_the_smallest_quadratic_form():
    M = np.random.default_rng(0).normal(size=(3, 3))
    u = np.random.default_rng(1).normal(size=(20_000, 3))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    seen = np.einsum("ni,ij,nj->n", u, M, u).min()
    assert linear.positivity(M) <= seen <= linear.positivity(M) + 0.01


@pytest.mark.parametrize(("gamma", "balance"), [(None, False), (None, True), (0.3, True)])
def test_steps_are_those_of_plain_loops(gamma, balance):
    rng = np.random.default_rng(3)
    d, depth, rate = 3, 4, 0.02
    sxx = np.diag([1.0, 2.0, 0.5])
    R = random_matrix(rng, d, 3.0)
    W = np.eye(d) + 0.2 * rng.normal(size=(depth, d, d))
    found = linear.projected_descent(W, sxx, R @ sxx, rate, 12, gamma, balance)
    layers, moved = [layer.copy() for layer in W], []
    for step in range(13):
        product = np.eye(d)
        for layer in layers:
            product = layer @ product
        error = product - R
        assert found.excess_risk[step] == pytest.approx(np.trace(error @ sxx @ error.T) / 2, rel=1e-8)
        if step == 12:
            break
        gradients = []
        for i in range(depth):
            before, after = np.eye(d), np.eye(d)
            for layer in layers[:i]:
                before = layer @ before
            for layer in layers[i + 1 :]:
                after = layer @ after
            gradients.append(after.T @ error @ sxx @ before.T)
        layers = [layer - rate * gradient for layer, gradient in zip(layers, gradients, strict=True)]
        if not balance:
            continue
        product = np.eye(d)
        for layer in layers:
            product = layer @ product
        target = product
        if gamma is not None:
            values, vectors = np.linalg.eigh((product + product.T) / 2)
            target = sum(max(v, gamma) * np.outer(u, u) for v, u in zip(values, vectors.T, strict=True))
            target = target + (product - product.T) / 2
        moved.append(np.linalg.norm(target - product))
        # Factors by SciPy's polar decomposition and matrix powers.
        Q, P = scipy.linalg.polar(target)
        root, stretch = (scipy.linalg.fractional_matrix_power(M, 1 / depth).real for M in (Q, P))
        turn, layers = np.eye(d), []
        for _ in range(depth):
            layers.append(root @ turn @ stretch @ turn.T)
            turn = root @ turn
    if moved:
        np.testing.assert_allclose(found.projected, moved, atol=1e-8)
    np.testing.assert_allclose(found.weights, layers, atol=1e-7)
    if balance:
        assert linear.balancedness(found.weights[:, None], shortcut=False) < 1e-12


def test_projection_passes_the_barrier_of_a_negative_eigenvalue():
    R = np.diag([1.5, 0.6])
    W = linear.initial_weights("identity", 4, 1, 2)[:, 0]
    W[-1] *= -1
    assert linear.projected_descent(W, np.eye(2), R, 0.05, 300, balance=False).excess_risk[-1] > 0.2
    found = linear.projected_descent(W, np.eye(2), R, 0.05, 300, gamma=0.2)
    assert found.excess_risk[-1] < 1e-10
    assert found.projected[0] > 1


def test_divergence():
    W = linear.initial_weights("identity", 3, 1, 2)[:, 0]
    found = linear.projected_descent(W, np.eye(2), 2 * np.eye(2), 1e9, 5, balance=False)
    assert np.isnan(found.excess_risk[1:]).all()
