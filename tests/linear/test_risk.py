"""Risk, gradient and gradient dominance of linear residual networks: samples, differences, counterexamples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idmatters_tf import linear
from tests.support.linear_cases import central_differences, random_covariance

SEEDS = st.integers(0, 2**32 - 1)


def problem(seed, depth=None, size=None):
    rng = np.random.default_rng(seed)
    d, depth = size or rng.integers(1, 5), depth or rng.integers(1, 7)
    A = rng.normal(size=(depth, d, d))
    A *= rng.uniform(0, 1.1) / linear.tensor_norm(A)
    return A, rng.normal(size=(d, d)) * rng.choice([0.1, 1, 10]), random_covariance(rng, d)


def test_risk_is_the_mean_over_a_distribution():
    # A distribution on 2d equally likely points x and 2 values of the noise: the expectation is a finite sum.
    A, R, _ = problem(3, depth=3, size=3)
    X = np.random.default_rng(1).normal(size=(3, 6))
    noise = 0.7 * np.sqrt(3) * np.array([np.eye(3)[i] * sign for i in range(3) for sign in (-1, 1)])
    first, second, third = A + np.eye(3)
    errors = [third @ second @ first @ x - R @ x - xi for x in X.T for xi in noise]
    risk = linear.population_risk(A, R, X @ X.T / 6, noise_variance=0.49)
    assert risk == pytest.approx(np.mean([error @ error for error in errors]), rel=1e-12)


@given(SEEDS)
def test_gradient_against_central_differences(seed):
    A, R, S = problem(seed)
    expected = central_differences(lambda A: linear.population_risk(A, R, S, 0.0), A)
    # The risk is a polynomial of degree 2 in each entry, so central differences are exact up to rounding.
    scale = np.abs(expected).max() + linear.population_risk(A, R, S, 0.0)
    np.testing.assert_allclose(linear.risk_gradient(A, R, S), expected, atol=1e-9 * scale)


@given(SEEDS)
@settings(max_examples=200)
def test_gradient_dominance_holds_and_its_bounds_are_the_formulas(seed):
    A, R, S = problem(seed)
    certificate = linear.gradient_dominance(A, R, S)
    assert certificate.holds
    assert certificate.inside == (certificate.tau < 1)
    assert certificate.gradient_norm_squared == pytest.approx(np.sum(linear.risk_gradient(A, R, S) ** 2))
    if not certificate.inside:
        assert certificate.lower_bound == certificate.per_layer_bound == 0
        return
    norms = [np.linalg.norm(layer, 2) for layer in A]
    eigenvalues = np.linalg.eigvalsh(S)
    smallest = eigenvalues[eigenvalues > 1e-12 * eigenvalues[-1]][0]
    excess = linear.population_risk(A, R, S, 2.0) - 2.0 * len(R)
    bound = 4 * len(A) * (1 - max(norms)) ** (2 * len(A) - 2) * smallest * excess
    sharp = sum(4 * np.prod([(1 - other) ** 2 for j, other in enumerate(norms) if j != i]) for i in range(len(A)))
    assert certificate.lower_bound == pytest.approx(bound, rel=1e-8, abs=1e-12)
    assert certificate.per_layer_bound == pytest.approx(sharp * smallest * excess, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize(("depth", "tau"), [(1, 0.3), (2, 0.0), (5, 0.9), (40, 0.3)])
def test_gradient_dominance_is_tight(depth, tau):
    rng = np.random.default_rng(depth)
    d = 3
    S = random_covariance(rng, d, rank=d)
    bottom = np.linalg.eigh(S)[1][:, 0]
    A = np.repeat(-tau * np.eye(d)[None], depth, axis=0)
    R = (1 - tau) ** depth * np.eye(d) - np.outer(rng.normal(size=d), bottom)
    certificate = linear.gradient_dominance(A, R, S)
    assert certificate.gradient_norm_squared == pytest.approx(certificate.lower_bound, rel=1e-6)
    assert certificate.holds


@given(SEEDS, st.floats(0, 17), st.floats(-160, 150))
def test_gradient_dominance_holds_at_any_condition_number_and_scale(seed, digits, scale):
    rng = np.random.default_rng(seed)
    d = rng.integers(2, 6)
    Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
    S = 10.0**scale * Q * 10.0 ** -rng.permutation(np.linspace(0, digits, d)) @ Q.T
    A = np.repeat(-rng.uniform(0, 0.9) * np.eye(d)[None], rng.integers(1, 5), axis=0)
    bottom = np.linalg.eigh(S + S.T)[1][:, 0]
    assert linear.gradient_dominance(A, linear.compose(A) - np.outer(rng.normal(size=d), bottom), (S + S.T) / 2).holds


def test_counterexamples_to_the_squared_eigenvalue_of_v2_and_the_exponent_of_v1():
    certificate = linear.gradient_dominance([[[0.0]]], [[0.0]], [[4.0]])
    assert certificate.gradient_norm_squared == 64
    assert 4 * 4.0**2 * certificate.excess_risk > 64 == certificate.lower_bound
    certificate = linear.gradient_dominance(np.full((3, 1, 1), -0.5), [[2.0]])
    assert certificate.gradient_norm_squared == pytest.approx(2.6367, abs=1e-4)
    assert 4 * 3 * 0.5**2 * certificate.excess_risk == pytest.approx(10.547, abs=1e-3)
    assert certificate.holds


def test_the_sphere_tau_1_and_the_standard_parameterization_have_bad_critical_points():
    A = np.repeat(-np.eye(2)[None], 3, axis=0)
    certificate = linear.gradient_dominance(A, np.eye(2))
    assert certificate.gradient_norm_squared == 0
    assert certificate.excess_risk == pytest.approx(2)
    assert not certificate.inside
    gradient = linear.shortcut_gradient(np.zeros((3, 1, 2, 2)), np.eye(2), np.eye(2), shortcut=False)
    assert not gradient.any()


def test_singular_and_zero_covariance():
    A, R, _ = problem(5, depth=3, size=3)
    A *= 0.5 / linear.tensor_norm(A)
    S = np.diag([2.0, 0.5, 0.0])
    certificate = linear.gradient_dominance(A, R, S)
    assert certificate.lower_bound == pytest.approx(4 * 3 * 0.5**4 * 0.5 * certificate.excess_risk)
    assert certificate.holds
    empty = linear.gradient_dominance(A, R, np.zeros((3, 3)))
    assert (empty.gradient_norm_squared, empty.lower_bound, empty.holds) == (0, 0, True)
    assert linear.population_risk(A, R, np.zeros((3, 3)), 1.5) == 4.5


@given(SEEDS, st.integers(1, 4), st.floats(0, 250))
def test_excess_risk_of_coordinates_of_any_size(seed, d, digits):
    """Check correlations of moderate condition in units that differ by up to 250 orders of magnitude."""
    rng = np.random.default_rng(seed)
    units = 10.0 ** rng.uniform(-digits / 2, digits / 2, d)
    factor = rng.normal(size=(d, 2 * d + 2))
    sxx, R = factor @ factor.T * units * units[:, None], rng.normal(size=(d, d)) / units
    sxx = (sxx + sxx.T) / 2
    syx = R @ sxx
    W = np.zeros((1, 1, 1, d, d))
    # L - L_min = tr(S_YX S_XX^-1 S_YX^T) / 2 at the zero map.
    unit_sxx, unit_syx = sxx / units / units[:, None], syx / units
    expected = np.sum(np.linalg.solve(unit_sxx, unit_syx.T).T * unit_syx) / 2
    measured = linear.gradient_descent(W, sxx, syx, 0.0, 0, shortcut=False)
    assert measured.excess_risk.item() == pytest.approx(expected, rel=1e-6)
