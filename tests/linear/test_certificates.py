"""Convergence theorems compared with descent: guarantees hold, and none is given without its assumptions."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from idmatters_tf import linear
from tests.support.linear_cases import random_data, random_matrix

SEEDS = st.integers(0, 2**32 - 1)


def descend(W, R, rate, steps, shortcut=False):
    return linear.gradient_descent(W[None], np.eye(len(R)), R, rate, steps, shortcut)


def satisfies_its_guarantee(certificate, excess):
    """Return True if each step of a run contracts by at least the guarantee, up to rounding."""
    excess = excess[excess > max(1e-20 * excess[0], 1e-26)]
    promised = excess[:1] * (1 - certificate.contraction) ** np.arange(len(excess))
    return (excess <= promised * (1 + 1e-9)).all()


STEPS = ("jacobians", "dominance")


def random_point(seed, depth, d):
    """Return moments of random data and a point with shortcuts, (W, sxx, syx, shortcut)."""
    rng = np.random.default_rng(seed)
    X, Y = random_data(rng, d)
    X *= np.exp(rng.normal(size=(d, 1)))
    sxx, syx, _ = linear.sufficient_statistics(X, Y * np.exp(rng.normal()))
    W = rng.normal(size=(depth, 1, d, d)) * rng.uniform(0, 1) / np.sqrt(d)
    shortcut = bool(rng.integers(2))
    return W if shortcut else W + 0.5 * np.eye(d), sxx, syx, shortcut


@given(SEEDS, st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_gradient_satisfies_the_inequalities_at_a_point(seed, depth, d):
    W, sxx, syx, shortcut = random_point(seed, depth, d)
    excess = linear.excess_risk(W, sxx, syx, shortcut)
    assume(excess > 1e-12)
    squared = np.sum(linear.shortcut_gradient(W, sxx, syx, shortcut=shortcut) ** 2)
    # For rates near 0 the contraction is rate * 2 mu.
    rate = 1e-9
    found = linear.certificates(W, sxx, syx, rate, shortcut)
    for name in STEPS:
        assert rate * squared / excess >= found[name].contraction * (1 - 1e-5)
    assert found["jacobians"].contraction >= found["dominance"].contraction * (1 - 1e-9)
    # The same inequality as (2.3), for the risk 2 L.
    if shortcut and np.linalg.eigvalsh(sxx)[0] > 1e-9:
        dominance = linear.gradient_dominance(W[:, 0], np.linalg.solve(sxx, syx.T).T, sxx)
        if dominance.inside and found["dominance"].applies:
            expected = rate * dominance.lower_bound / 4 / excess
            assert found["dominance"].contraction == pytest.approx(expected, rel=1e-4, abs=1e-18)


@given(SEEDS, st.integers(1, 6), st.integers(1, 4), st.floats(0.01, 3.0))
@settings(max_examples=60, deadline=None)
def test_steps_satisfy_their_guarantees_which_compose(seed, depth, d, share):
    W, sxx, syx, shortcut = random_point(seed, depth, d)
    # Multiples of an estimate of the largest stable rate, from far below to beyond all guarantees.
    rate = share / max(np.linalg.norm(linear.shortcut_hessian(W, sxx, syx, shortcut), 2), 1e-6)
    left = dict.fromkeys(STEPS, 1.0)
    start = linear.excess_risk(W, sxx, syx, shortcut)
    for _ in range(8):
        before = linear.excess_risk(W, sxx, syx, shortcut)
        found = linear.certificates(W, sxx, syx, rate, shortcut)
        descent = linear.gradient_descent(W[None], sxx, syx, rate, 1, shortcut)
        W, after = descent.weights[0], descent.excess_risk[0, 1]
        if np.isnan(after):
            assert not any(found[name].applies for name in STEPS)
            break
        # Rounding of the map changes the risk by about eps * sqrt(before * start).
        if before <= 1e-13 * start:
            break
        for name in STEPS:
            certificate = found[name]
            assert certificate.applies == (rate <= certificate.largest_rate)
            assert 0 <= certificate.contraction <= 1
            if certificate.applies:
                assert after <= before * (1 - certificate.contraction) + 1e-9 * before + 1e-25
            left[name] = left[name] * (1 - certificate.contraction) if certificate.applies else np.inf
            assert after <= left[name] * start * (1 + 1e-7) + 1e-24


@given(SEEDS, st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_the_second_derivative_along_a_step_is_below_its_bound(seed, depth, d):
    W, sxx, syx, shortcut = random_point(seed, depth, d)
    largest = linear.certificates(W, sxx, syx, 0.0, shortcut)["jacobians"].largest_rate
    assume(largest > 0)
    gradient = linear.shortcut_gradient(W, sxx, syx, shortcut=shortcut)
    g = gradient.ravel() / np.linalg.norm(gradient)
    for t in np.linspace(0, largest, 7):
        curvature = g @ linear.shortcut_hessian(W - t * gradient, sxx, syx, shortcut) @ g
        assert curvature <= 2 / largest * (1 + 1e-9)


def test_one_scalar_layer_is_exact():
    for rate in (0.0, 0.3, 1.0, 1.7, 2.0):
        found = linear.certificates([[[[0.0]]]], [[1.0]], [[5.0]], rate)
        for name in STEPS:
            assert found[name].contraction == pytest.approx(1 - (1 - rate) ** 2, abs=1e-13)
            assert found[name].largest_rate == pytest.approx(2, rel=1e-11)
    found = linear.certificates([[[[0.0]]]], [[1.0]], [[2.0]], 3.0)
    assert linear.gradient_descent([[[[[0.0]]]]], [[1.0]], [[2.0]], 3.0, 1).excess_risk[0, 1] == 4 * 0.5
    for name in STEPS:
        assert not found[name].applies
        assert "the rate is 3, at most 2 is allowed" in found[name].reason


def test_a_guarantee_of_one_step_does_not_extend_to_a_run():
    # From the identity the risk decreases from 2 to 1/2 and remains there.
    A, R = np.zeros((3, 1, 1, 1)), [[-1.0]]
    path = linear.gradient_descent(A[None], [[1.0]], R, 0.01, 3000, record_every=3000).excess_risk[0]
    assert path[0] == 2
    assert path[-1] > 0.5
    for name in STEPS:
        certificate = linear.certificates(A, [[1.0]], R, 0.01)[name]
        assert certificate.scope == "step"
        assert certificate.applies
        assert certificate.steps(2, 1e-6) == np.inf
        assert certificate.steps(2, 2 * (1 - certificate.contraction)) == 1
        assert certificate.steps(2, 2) == 0


@given(SEEDS, st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=12, deadline=None)
def test_balanced_starts_converge_as_guaranteed(seed, depth, d):
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
    assert satisfies_its_guarantee(certificate, descend(W, R, rate, 300).excess_risk[0])
    assert not linear.certificates(W, np.eye(d), R, 1.01 * rate, shortcut=False)["balanced"].applies


@given(SEEDS, st.integers(1, 8), st.integers(1, 4), st.floats(0.05, 8.0))
@settings(max_examples=12, deadline=None)
def test_the_zero_asymmetric_start_converges_as_guaranteed(seed, depth, d, size):
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
    assert satisfies_its_guarantee(certificate, found.excess_risk[0])
    assert not linear.certificates(W, np.eye(d), R, 1.01 * rate, shortcut=False)["zero-asymmetric"].applies
    # Intermediate statements of the proof: successive layers stay nearly balanced, layers below the last are nearly
    # isometric or larger, all layers are bounded, and the gradient is bounded below.
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
@settings(max_examples=12, deadline=None)
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
    assert satisfies_its_guarantee(certificate, found.excess_risk[0])
    a = linear.scalar_recursions(eigenvalues, depth, rate, 200)
    np.testing.assert_allclose(found.weights[0, 0, 0], basis * a[-1] @ basis.T, atol=1e-13)
    # No value passes its target.
    root = eigenvalues ** (1 / depth)
    assert (np.diff(np.abs(a - root), axis=0) <= 1e-14).all()


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
    # Only the negative eigenvalue prevents the theorem about positive definite targets.
    found = linear.certificates(identity, np.eye(2), np.diag([2.0, -0.8]), 0.01, shortcut=False)
    assert "eigenvalue -0.8" in found["positive definite"].reason


@pytest.mark.parametrize(
    ("contraction", "start", "goal", "expected"),
    [
        (1.0, 3.0, 1e-300, 1),
        (1.0, 3.0, 0.0, 1),
        (0.5, 1.0, 0.0, np.inf),
        (0.5, 0.0, 0.0, 0),
        (0.5, 8.0, 1.0, 3),
        (0.5, 1e300, 1e-300, 1994),
        (1e-320, 1.0, 0.1, np.inf),
        (0.0, 1.0, 0.1, np.inf),
    ],
)
def test_steps_at_the_ends(contraction, start, goal, expected):
    certificate = linear.Certificate("balanced", True, "", "run", contraction, 1.0)
    assert certificate.steps(start, goal) == expected


@given(
    st.integers(1, 4),
    st.sampled_from([-300, -200, -100, 0, 100, 200, 300]),
    st.sampled_from([-300, -200, -100, -40, 0, 40, 100, 200, 300]),
    st.floats(0.1, 1.9),
)
@settings(max_examples=60, deadline=None)
def test_scalar_steps_in_rational_arithmetic_at_any_scale(depth, exponent, weight_exponent, share):
    """Check guarantees of a step in rational arithmetic at any scale."""
    s, r, w = 10.0**exponent, 0.7 * 10.0 ** min(weight_exponent * depth, 300), 1.1 * 10.0**weight_exponent
    W = np.full((depth, 1, 1, 1), w)
    syx = r * s
    assume(0 < syx < np.inf)
    # Beyond these bounds the map or its Jacobians exceed float64; another test covers this error.
    assume(abs(weight_exponent * depth) <= 300 and abs(weight_exponent * (depth - 1) + exponent / 2) <= 300)
    largest = linear.certificates(W, [[s]], [[syx]], 0.0, shortcut=False)["jacobians"].largest_rate
    rate = largest * share / 1.9
    assume(0 < rate < np.inf)
    certificate = linear.certificates(W, [[s]], [[syx]], rate, shortcut=False)["jacobians"]
    S, target, eta, a = Fraction(s), Fraction(syx) / Fraction(s), Fraction(rate), Fraction(w)
    after = a - eta * S * (a**depth - target) * a ** (depth - 1)
    before, left = (a**depth - target) ** 2, (after**depth - target) ** 2
    assert left <= before * (1 - Fraction(certificate.contraction)) + before * Fraction(1, 10**9)
    assert certificate.applies


def test_scales_of_the_inputs_change_only_the_rates():
    W, sxx, syx, shortcut = random_point(5, 3, 3)
    reference = linear.certificates(W, sxx, syx, 1e-3, shortcut)
    for exponent in (-900, -300, 300, 900):
        scale = 2.0**exponent
        found = linear.certificates(W, scale * sxx, scale * syx, 1e-3 / scale, shortcut)
        for name in STEPS:
            assert found[name].contraction == pytest.approx(reference[name].contraction, rel=1e-9)
            assert found[name].largest_rate * scale == pytest.approx(
                reference[name].largest_rate, rel=1e-9, nan_ok=True
            )


@pytest.mark.parametrize("scale", [1e-300, 1e300])
@pytest.mark.parametrize("depth", [1, 5])
def test_large_and_small_targets(scale, depth):
    for start in ("identity", "zero-asymmetric"):
        W = linear.initial_weights(start, depth, 1, 2)
        for certificate in linear.certificates(W, np.eye(2), scale * np.eye(2), 1e-5, shortcut=False).values():
            assert 0 <= certificate.contraction <= 1
            assert certificate.applies != bool(certificate.reason)
    W = scale ** (1 / depth) * linear.initial_weights("identity", depth, 1, 2)
    # Balanced and at the optimum: Theorem 1 of Arora et al. with the margin sigma_min(R).
    found = linear.certificates(W, np.eye(2), scale * np.eye(2), 0.0, shortcut=False)["balanced"]
    assert found.applies
    # For R = scale * I in two dimensions c = scale and ||R||_F = sqrt(2) scale.
    exponent = math.log(scale) * (2 / depth - 2) - math.log(2) * (3 - 2 / depth) - math.log(6144 * depth**3)
    assert found.largest_rate == pytest.approx(np.exp(exponent) if exponent < 700 else np.inf, rel=1e-9)


def test_singular_products_and_zero_inputs_guarantee_nothing():
    W = np.zeros((3, 1, 2, 2))
    found = linear.certificates(W, np.eye(2), np.eye(2), 0.1, shortcut=False)
    assert "singular" in found["jacobians"].reason
    assert not found["jacobians"].contraction
    found = linear.certificates(W, np.zeros((2, 2)), np.zeros((2, 2)), 0.1)
    assert all("inputs are all zero" in found[name].reason for name in STEPS)
    # A small coordinate counts like any other: the rate is adapted to the large one, and the small one learns slowly.
    found = linear.certificates(W[:1], np.diag([1.0, 1e-20]), np.diag([2.0, 3e-20]), 1.0)
    assert found["jacobians"].contraction == pytest.approx(1e-20, rel=1e-3)
