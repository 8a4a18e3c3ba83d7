"""Factorizations near the identity: random search for violations, and corner cases."""

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from idmatters_tf import linear
from tests.support.linear_cases import random_matrix

SEEDS = st.integers(0, 2**32 - 1)


def rotation(*angles):
    return scipy.linalg.block_diag(*([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]] for a in angles))


def conditioned(d, condition):
    """Return a matrix that is not normal, with singular values evenly spaced in the logarithm."""
    U, V = (scipy.stats.special_ortho_group.rvs(d, random_state=seed) for seed in (1, 2))
    return U * np.geomspace(condition**0.5, condition**-0.5, d) @ V.T


def check(R, A, depth):
    """Check the product and the number of layers. Below norm 1 the rounding is that of I + A_i."""
    assert A.shape == (depth, *R.shape)
    norm = np.linalg.norm(R, 2)
    assert np.linalg.norm(linear.compose(A) - R, 2) <= 1e-11 * depth * norm / min(1.0, norm ** (1 / depth))


@given(SEEDS, st.integers(1, 80))
@settings(max_examples=150)
def test_polar_between_its_bounds(seed, depth):
    rng = np.random.default_rng(seed)
    R = random_matrix(rng, rng.integers(1, 7), 1e4)
    A, bounds = linear.factorize(R, depth), linear.factorization_bounds(R, depth)
    check(R, A, depth)
    norm = linear.tensor_norm(A)
    assert bounds.lower * (1 - 1e-9) <= norm + 1e-13
    assert norm <= bounds.polar * (1 + 1e-9) + 1e-13
    assert norm == pytest.approx(np.linalg.norm(A[0], 2), rel=1e-9, abs=1e-13)
    if bounds.theorem_applies:
        assert bounds.polar <= 0.4 * bounds.theorem
        # The bound of version 1.
        assert norm <= 0.5 * 2 * (np.pi**0.5 + (3 * bounds.gamma) ** 0.5) ** 2 / depth
    # The bound 3 gamma / l of appendix A for symmetric positive definite matrices, here R^T R.
    gamma = linear.factorization_bounds(R.T @ R, depth).gamma
    if depth >= 3 * gamma:
        assert linear.tensor_norm(linear.factorize(R.T @ R, depth, "psd")) <= 0.4 * 3 * gamma / depth + 1e-13


@given(SEEDS, st.sampled_from(["paper", "log", "psd"]), st.integers(5, 40))
@settings(max_examples=60)
def test_other_methods_multiply_to_R(seed, method, depth):
    rng = np.random.default_rng(seed)
    R = random_matrix(rng, rng.integers(1, 6))
    if method == "psd":
        R = R @ R.T
    if method == "log":
        R = scipy.linalg.expm(rng.normal(size=R.shape) / 2) * 10.0 ** rng.uniform(-20, 200)
    check(R, linear.factorize(R, depth, method), depth)


def test_integers_of_the_paper_exceed_its_bound():
    R = random_matrix(np.random.default_rng(0), 4, 10.0)
    depths = range(8, 40)
    missed = [
        depth
        for depth in depths
        if linear.tensor_norm(linear.factorize(R, depth, "paper")) > linear.factorization_bounds(R, depth).theorem
    ]
    assert 0 < len(missed) < len(depths)


CORNERS = {
    "below one": [[1e-9]],
    "odd": rotation(2.0, 1.0)[:3, :3] + np.diag([0.0, 0.0, 1.0 - np.cos(1.0)]),
    "double -1": np.diag([1.0, -1.0, 3.0, -1.0]),
    "half turn of a plane": rotation(np.pi, 0.5),
    "nearly half a turn": rotation(np.pi - 1e-9, np.pi - 1e-9),
    "shear": [[1.0, 100.0], [0.0, 1.0]],
    "condition 1e12, not normal": conditioned(5, 1e12),
    "condition 1e12 in the plane": conditioned(2, 1e12),
    "tiny": 1e-200 * rotation(1.0, 2.0),
    "huge": 1e200 * rotation(1.0),
    "permutation": np.eye(5)[[1, 2, 3, 4, 0]],
}


@pytest.mark.parametrize("name", CORNERS)
def test_factorization_of_special_matrices(name):
    R = np.array(CORNERS[name], dtype=float)
    for depth in (1, 3, 10_000 if name == "condition 1e12, not normal" else 300):
        if name == "tiny" and depth < 300:
            for method in ("polar", "log"):
                with pytest.raises(ValueError, match="`depth` must be larger, or `R` scaled to norm 1"):
                    linear.factorize(R, depth, method)
            continue
        A, bounds = linear.factorize(R, depth), linear.factorization_bounds(R, depth)
        check(R, A, depth)
        assert bounds.lower * (1 - 1e-7) - 1e-15 <= linear.tensor_norm(A)
        if depth > 1:
            assert linear.tensor_norm(A) <= bounds.polar * (1 + 1e-9) + 1e-15


def test_special_cases_exactly():
    assert not linear.factorize(np.eye(3), 7).any()
    np.testing.assert_array_equal(linear.factorize([[3.0, 1.0], [0.0, 2.0]], 1)[0], [[2.0, 1.0], [0.0, 1.0]])
    A = linear.factorize(np.diag([16.0, 1.0]), 4)
    np.testing.assert_allclose(A, np.repeat(np.diag([1.0, 0.0])[None], 4, axis=0), atol=1e-15)
    np.testing.assert_allclose(linear.factorize(np.diag([16.0, 1.0]), 4, "psd"), A, atol=1e-14)
    # A rotation by theta in l equal steps, ||T(theta / l) - I|| = 2 sin(theta / 2l) exactly.
    A = linear.factorize(rotation(2.0), 10)
    np.testing.assert_allclose(A[3], rotation(0.2) - np.eye(2), atol=1e-15)
    assert linear.tensor_norm(A) == pytest.approx(2 * np.sin(0.1), rel=1e-13)
    assert linear.factorization_bounds(rotation(2.0), 10).lower == pytest.approx(np.sin(0.2), rel=1e-13)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_negative_determinant(d):
    R = np.diag([-2.0] + [1.0] * (d - 1))
    remedy = "on_negative_determinant='augment'.*" + ("-R with the labels" if d % 2 else "requires odd d")
    for function in (linear.factorize, linear.factorization_bounds):
        with pytest.raises(ValueError, match=remedy):
            function(R, 6)
    A = linear.factorize(R, 6, on_negative_determinant="augment")
    check(linear.augment(R), A, 6)
    assert linear.factorization_bounds(linear.augment(R), 6).gamma == pytest.approx(np.log(2))
    if d % 2:
        check(-R, linear.factorize(-R, 6), 6)
    assert linear.factorize(np.eye(d), 3, on_negative_determinant="augment").shape == (3, d, d)
