"""The power projection: convergence, balanced layers, and the projection itself."""

import numpy as np
import pytest

from idmatters_tf import linear


def test_a_positive_target_is_reached_with_balanced_layers():
    rng = np.random.default_rng(0)
    S, K = rng.normal(size=(2, 4, 4))
    R = S @ S.T / 4 + 0.5 * np.eye(4) + (K - K.T) / 4
    A, losses = linear.power_projection(R, 4, 0.5 * linear.identity_start_rate(R, 4), 600, margin=0.4)
    assert losses[-1] < 1e-10
    values = np.linalg.svd(np.eye(4) + A, compute_uv=False)
    np.testing.assert_allclose(values, np.broadcast_to(values[0], values.shape), atol=1e-10)


def test_a_negative_eigenvalue_ends_at_the_projection_of_the_target():
    R = np.diag([2.0, -1.0])
    A, losses = linear.power_projection(R, 3, 0.05, 400, margin=0.1)
    np.testing.assert_allclose(linear.compose(A), linear.project_positive(R, 0.1), atol=1e-6)
    # It is more than half of the square of the eigenvalue.
    assert losses[-1] == pytest.approx(1.1**2 / 2)
    # The last layers are those of the last loss.
    A, losses = linear.power_projection(R, 3, 0.05, 3, margin=0.1)
    assert losses[-1] == pytest.approx(np.linalg.norm(linear.compose(A) - R) ** 2 / 2, rel=1e-12)


def test_the_projection_is_the_nearest_matrix():
    rng = np.random.default_rng(0)
    M = rng.normal(size=(3, 3))
    P = linear.project_positive(M, 0.3)
    assert np.linalg.eigvalsh((P + P.T) / 2)[0] == pytest.approx(0.3)
    for _ in range(200):
        other = linear.project_positive(P + rng.normal(scale=0.1, size=(3, 3)), 0.3)
        assert np.linalg.norm(other - M) >= np.linalg.norm(P - M) - 1e-12
