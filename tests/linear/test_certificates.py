"""Convergence theorems against descent itself: no promise is broken, and none is made without its assumptions."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from idmatters_tf import linear
from tests.support.linear_cases import random_data, random_matrix

SEEDS = st.integers(0, 2**32 - 1)


def descend(W, R, rate, steps, shortcut=False):
    return linear.gradient_descent(W[None], np.eye(len(R)), R, rate, steps, shortcut)


def keeps_its_promise(certificate, excess):
    """Each step of a run contracts by at least what was promised for it, down to rounding."""
    excess = excess[excess > max(1e-20 * excess[0], 1e-26)]
    promised = excess[:1] * (1 - certificate.contraction) ** np.arange(len(excess))
    return (excess <= promised * (1 + 1e-9)).all()


@given(SEEDS, st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_at_a_point_the_gradient_is_as_large_as_promised(seed, depth, d):
    rng = np.random.default_rng(seed)
    X, Y = random_data(rng, d)
    sxx, syx, _ = linear.sufficient_statistics(X, Y)
    A = rng.normal(size=(depth, 1, d, d)) * rng.uniform(0, 0.6) / np.sqrt(d)
    excess = linear.excess_risk(A, sxx, syx)
    assume(excess > 1e-12)
    squared = np.sum(linear.shortcut_gradient(A, sxx, syx) ** 2)
    rate = 1e-6
    found = linear.certificates(A, sxx, syx, rate)
    for name in ("jacobians", "dominance"):
        assert rate * squared / excess >= found[name].contraction * (1 - 1e-5)
    assert found["jacobians"].contraction >= found["dominance"].contraction * (1 - 1e-9)
    # The same inequality as (2.3), for the risk 2 L.
    W = linear.least_squares_optimum(X, Y)[0]
    dominance = linear.gradient_dominance(A[:, 0], W, sxx)
    if dominance.inside and np.linalg.eigvalsh(sxx)[0] > 1e-9:
        assert found["dominance"].contraction == pytest.approx(
            rate * dominance.lower_bound / 4 / excess, rel=1e-4, abs=1e-18
        )


@given(SEEDS, st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_balanced_starts_converge_as_promised(seed, depth, d):
    rng = np.random.default_rng(seed)
    R = random_matrix(rng, d, 3.0)
    # The twisted polar factors are exactly balanced: all have the same singular values.
    near = R + 0.3 * np.linalg.svd(R)[1][-1] * rng.normal(size=(d, d)) / d
    assume(np.linalg.det(near) > 0)
    W = np.eye(d) + linear.factorize(near, depth)[:, None]
    first = linear.certificates(W, np.eye(d), R, 0.0, shortcut=False)["balanced"]
    assume(first.applies)
    margin = np.linalg.svd(R)[1][-1] - np.linalg.norm(near - R)
    size = np.linalg.norm(R)
    rate = margin ** (4 - 2 / depth) / (6144 * depth**3 * size ** (6 - 4 / depth))
    certificate = linear.certificates(W, np.eye(d), R, rate * (1 - 1e-9), shortcut=False)["balanced"]
    assert certificate.applies
    assert first.largest_rate == pytest.approx(rate, rel=1e-6)
    assert certificate.contraction == pytest.approx(rate * margin ** (2 - 2 / depth), rel=1e-6)
    assert keeps_its_promise(certificate, descend(W, R, rate, 300).excess_risk[0])
    assert not linear.certificates(W, np.eye(d), R, 1.01 * rate, shortcut=False)["balanced"].applies


@given(SEEDS, st.integers(1, 8), st.integers(1, 4), st.floats(0.05, 8.0))
@settings(max_examples=25, deadline=None)
def test_the_zero_asymmetric_start_converges_as_promised(seed, depth, d, size):
    rng = np.random.default_rng(seed)
    R = rng.normal(size=(d, d))
    R *= size / np.linalg.norm(R)
    W = linear.initial_weights("zero-asymmetric", depth, 1, d)
    rate = 1 / (4 * depth * max(4 * depth * size**2, np.e)) * (1 - 1e-9)
    for shortcut in (True, False):
        start = linear.initial_weights("zero-asymmetric", depth, 1, d, shortcut=shortcut)
        assert linear.certificates(start, np.eye(d), R, rate, shortcut)["zero-asymmetric"].applies
    certificate = linear.certificates(W, np.eye(d), R, rate, shortcut=False)["zero-asymmetric"]
    assert certificate.contraction == 1.5 * rate
    assert certificate.largest_rate == pytest.approx(rate)
    found = descend(W, R, rate, 300)
    assert keeps_its_promise(certificate, found.excess_risk[0])
    assert not linear.certificates(W, np.eye(d), R, 1.01 * rate, shortcut=False)["zero-asymmetric"].applies
    # What the proof says on the way: successive layers stay nearly balanced, those below the last nearly isometric or
    # larger, none too large, and the gradient is never small.
    layers, drift = found.weights[0, :, 0], rate * size**2
    for number, (lower, upper) in enumerate(itertools.pairwise(layers), 1):
        of_start = -np.eye(d) if number == depth - 1 else 0.0
        assert np.linalg.norm(upper.T @ upper - lower @ lower.T - of_start, 2) <= drift * (1 + 1e-9) + 1e-13
    below = [1 - (depth - 1 - number) * drift for number in range(depth - 1)]
    assert all(np.linalg.svd(W)[1][-1] ** 2 >= least - 1e-12 for W, least in zip(layers[:-1], below, strict=True))
    assert max(np.linalg.norm(W, 2) for W in layers) ** (2 * depth - 2) <= 1.1 * max(4 * depth * size**2, np.e)
    excess, gradient = found.excess_risk[0], found.gradient_norm[0]
    assert (gradient**2 >= 2 * 31 / 32 * excess * (1 - 1e-9)).all()


@given(SEEDS, st.integers(1, 20), st.floats(0.05, 20.0), st.floats(0.05, 20.0))
@settings(max_examples=25, deadline=None)
def test_positive_definite_targets_are_scalar_recursions(seed, depth, low, high):
    rng = np.random.default_rng(seed)
    d = 3
    eigenvalues = rng.uniform(min(low, high), max(low, high), d)
    basis = linear.initial_weights("orthogonal", 1, 1, d, seed=seed)[0, 0]
    R = basis * eigenvalues @ basis.T
    R = (R + R.T) / 2
    rate = 1 / ((2 * depth - 1) * max(1.0, eigenvalues.max() ** (2 - 2 / depth))) * (1 - 1e-9)
    W = linear.initial_weights("identity", depth, 1, d)
    certificate = linear.certificates(W, np.eye(d), R, rate, shortcut=False)["positive definite"]
    assert certificate.applies
    found = descend(W, R, rate, 200)
    assert keeps_its_promise(certificate, found.excess_risk[0])
    a = linear.scalar_recursions(eigenvalues, depth, rate, 200)
    np.testing.assert_allclose(found.weights[0, 0, 0], basis * a[-1] @ basis.T, atol=1e-13)
    # Nothing passes its target.
    root = eigenvalues ** (1 / depth)
    assert (np.diff(np.abs(a - root), axis=0) <= 1e-14).all()


def test_identity_start_equals_the_recursions_to_rounding():
    eigenvalues = np.array([3.0, 1.5, 0.4])
    basis = linear.initial_weights("orthogonal", 1, 1, 3, seed=5)[0, 0]
    found = descend(linear.initial_weights("identity", 6, 1, 3), basis * eigenvalues @ basis.T, 0.01, 300)
    a = linear.scalar_recursions(eigenvalues, 6, 0.01, 300)
    np.testing.assert_allclose(found.weights[0, :, 0], np.broadcast_to(basis * a[-1] @ basis.T, (6, 3, 3)), atol=1e-14)


def test_a_negative_eigenvalue_is_a_barrier_from_the_identity():
    basis = linear.initial_weights("orthogonal", 1, 1, 3, seed=2)[0, 0]
    R = basis * [2.0, 0.7, -0.8] @ basis.T
    found = descend(linear.initial_weights("identity", 4, 1, 3), R, 0.05, 800)
    barrier = linear.identity_start_barrier((R + R.T) / 2)
    assert barrier == pytest.approx(0.32)
    assert (found.excess_risk >= barrier).all()
    assert found.excess_risk[0, -1] == pytest.approx(barrier, rel=0.05)
    reason = linear.certificates(linear.initial_weights("identity", 4, 1, 3), np.eye(3), R, 0.01, False)
    assert "eigenvalue -0.8" in reason["positive definite"].reason
    with pytest.raises(ValueError, match="must be symmetric"):
        linear.identity_start_barrier([[0.0, 1.0], [0.0, 0.0]])


@given(SEEDS, st.integers(2, 6), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_flow_from_the_zero_asymmetric_start_falls_at_least_as_exp_minus_2_sigma_t(seed, depth, d):
    """By conservation the layers below the last keep singular values of 1 or more, so the last one's gradient is
    never smaller than that of a single layer."""
    rng = np.random.default_rng(seed)
    X, Y = random_data(rng, d, 3 * d + 2)
    sxx, syx, _ = linear.sufficient_statistics(X, Y)
    smallest = np.linalg.eigvalsh(sxx)[0]
    assume(smallest > 1e-3)
    W = linear.initial_weights("zero-asymmetric", depth, 1, d)
    times = np.linspace(0, 1.0, 5)
    flow = linear.gradient_flow(W, sxx, syx, times, shortcut=False)
    assert (flow.excess_risk <= flow.excess_risk[0] * np.exp(-2 * smallest * times) * (1 + 1e-6) + 1e-12).all()
    below = flow.weights[-1, :-1, 0]
    assert np.linalg.svd(below, compute_uv=False).min() >= 1 - 1e-6


def test_reasons_and_steps():
    R = np.diag([2.0, 1.0])
    W = linear.initial_weights("xavier", 3, 1, 2, seed=0)
    found = linear.certificates(W, np.diag([1.0, 2.0]), R, 0.1, shortcut=False)
    assert found["dominance"].reason.endswith("is not below 1")
    assert all(found[name].reason == "the inputs are not whitened" for name in ("balanced", "zero-asymmetric"))
    assert found["balanced"].steps(1.0, 0.1) == np.inf
    assert np.isnan(found["balanced"].largest_rate)
    assert found["balanced"].steps(0.1, 1.0) == 0
    identity = linear.initial_weights("identity", 3, 1, 2)
    certificate = linear.certificates(identity, np.eye(2), R, 0.01, shortcut=False)["positive definite"]
    steps = certificate.steps(1.0, 1e-3)
    assert (1 - certificate.contraction) ** steps <= 1e-3 < (1 - certificate.contraction) ** (steps - 1)
    with pytest.raises(ValueError, match="n = 1 with shortcuts"):
        linear.certificates(np.zeros((2, 2, 2, 2)), np.eye(2), R, 0.1)
