"""Descent from the identity for symmetric targets, against the full descent and the Hessian."""

import numpy as np
import pytest

from idmatters_tf import linear


@pytest.mark.parametrize(
    ("depth", "eigenvalues"),
    [(1, [0.2, 1.0, 3.0]), (3, [0.2, 1.0, 3.0]), (8, [0.2, 1.0, 3.0]), (3, [2.0, 1.5, -1.0]), (8, [2.0, 1.5, -1.0])],
)
def test_descent_from_the_identity_is_one_recursion_per_eigenvalue(depth, eigenvalues):
    r = np.array(eigenvalues)
    Q = linear.initial_weights("orthogonal", 1, 1, 3, seed=0)[0, 0]
    R = Q * r @ Q.T
    rate = linear.identity_start_rate(R, depth)
    A = np.zeros((depth, 3, 3))
    for _ in range(50):
        A -= rate / 2 * linear.risk_gradient(A, R)
    a = linear.eigenvalue_descent(r, depth, rate, 50)
    np.testing.assert_allclose(A, np.broadcast_to(Q * (a - 1) @ Q.T, A.shape), atol=1e-13)


@pytest.mark.parametrize("depth", [2, 5, 30])
def test_positive_targets_converge_within_the_bound_and_negative_ones_keep_their_loss(depth):
    r = 10.0 ** np.linspace(-0.5, 0.5, 6)
    R = np.diag(r)
    rate = linear.identity_start_rate(R, depth)
    steps = linear.steps_to_loss(R, depth, rate, 1e-8)
    reached, early = (linear.eigenvalue_descent(r, depth, rate, count) ** depth for count in (steps, steps // 3))
    assert np.square(reached - r).sum() / 2 <= 1e-8 < np.square(early - r).sum() / 2
    assert linear.steps_to_loss(np.eye(2), depth, rate, 1e-8) == 0
    for count in (0, 1, 10, 1000):
        a = linear.eigenvalue_descent(-r, depth, rate, count)
        assert (a >= 0).all()
        assert np.square(a**depth + r).sum() / 2 >= linear.identity_start_limit(-R) * (1 - 1e-15)


def test_a_large_rate_passes_zero_and_reaches_a_negative_eigenvalue():
    assert linear.eigenvalue_descent(-1.0, 3, 0.6, 200) ** 3 == pytest.approx(-1)


@pytest.mark.parametrize("depth", [2, 3, 6])
@pytest.mark.parametrize("r", [[2.0, 0.5, -1.0], [3.0, 0.2, -0.5], [2.0, 1.5, -1.0]])
def test_the_curvature_at_the_limit_is_the_smallest_eigenvalue_of_the_hessian(depth, r):
    R = np.diag(r)
    layer = np.diag(np.maximum(r, 0) ** (1 / depth)) - np.eye(3)
    hessian = linear.shortcut_hessian(np.array([layer] * depth)[:, None], np.eye(3), R)
    smallest = np.linalg.eigvalsh(hessian)[0]
    assert linear.identity_limit_curvature(R, depth) == pytest.approx(smallest, abs=1e-12)
