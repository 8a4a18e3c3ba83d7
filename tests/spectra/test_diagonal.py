"""Diagonals of matrices and operators, and the Laplace approximation of the last layer."""

from typing import Any

import keras
import numpy as np
import pytest
import scipy.sparse.linalg

from idmatters_tf.curvature import GaussNewtonOperator, diagonal

rng = np.random.default_rng(0)
MATRIX = rng.normal(size=(150, 150))


def counted(matrix):
    """Return an operator that counts its products."""
    count = []

    def multiply(vectors):
        count.append(vectors.shape[1])
        return matrix @ vectors

    shape: Any = matrix.shape
    operator: Any = scipy.sparse.linalg.LinearOperator(
        shape, matvec=lambda x: matrix @ x, matmat=multiply, dtype=matrix.dtype
    )
    return operator, count


@pytest.mark.parametrize("products", [None, 150, 1000])
def test_exact_diagonal(products):
    operator, count = counted(MATRIX)
    found = diagonal(operator, products)
    np.testing.assert_array_equal(found.value, np.diag(MATRIX))
    np.testing.assert_array_equal(found.standard_error, 0)
    assert max(count) <= 64


@pytest.mark.parametrize("chunk", [64, 7])
def test_estimates_are_unbiased_and_have_the_standard_error_of_the_formula(chunk):
    operator, count = counted(MATRIX)
    operator.chunk = chunk
    results = [diagonal(operator, 100, seed) for seed in range(60)]
    assert sum(count) == 6000
    assert max(count) == chunk
    values, errors = (np.array([getattr(each, name) for each in results]) for name in ("value", "standard_error"))
    others = np.sqrt((MATRIX**2).sum(1) - np.diag(MATRIX) ** 2)
    np.testing.assert_allclose(errors.mean(0), others / 10, rtol=0.05)
    np.testing.assert_allclose(values.std(0), others / 10, rtol=0.4)
    z = (values.mean(0) - np.diag(MATRIX)) / (others / 10 / np.sqrt(60))
    assert np.abs(z).max() < 4.5
    assert abs(z.std() - 1) < 0.2


def test_the_estimate_of_a_diagonal_matrix_is_exact():
    values = np.array([1e-3, 2.0, -5.0, 7e4] * 5)
    found = diagonal(np.diag(values), 8)
    np.testing.assert_allclose(found.value, values, rtol=1e-12)
    np.testing.assert_allclose(found.standard_error, 0, atol=1e-10)


def test_the_laplace_approximation_is_the_posterior_of_a_linear_gaussian_model():
    """For orthogonal features the covariance of the posterior is diagonal (Bishop, 2006, equation 3.51)."""
    noise, prior, count = 0.3, 2.0, 40
    features = np.linalg.qr(rng.normal(size=(count, 3)))[0] * [5.0, 2.0, 0.5]
    labels = features @ [[1.0], [-2.0], [0.5]] + noise * rng.normal(size=(count, 1))
    precision = features.T @ features / noise**2 + prior * np.eye(3)
    mean = np.linalg.solve(precision, features.T @ labels / noise**2)
    keras.config.set_dtype_policy("float64")
    model: Any = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    model.layers[-1].kernel.assign(mean)
    # The mean of squares has twice the curvature of the negative log-likelihood at variance 1.
    gauss_newton = GaussNewtonOperator(model, "mse", (features, labels))
    variances = 1 / (count / (2 * noise**2) * diagonal(gauss_newton).value + prior)
    np.testing.assert_allclose(variances, np.diag(np.linalg.inv(precision)), rtol=1e-6)
    x = rng.normal(size=(7, 3))
    expected = np.einsum("ni,ij,nj->n", x, np.linalg.inv(precision), x)
    np.testing.assert_allclose(x**2 @ variances, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((MATRIX, 1), "`products` must be at least 2"),
        ((MATRIX[:3],), r"`operator` must be square. Received: shape=\(3, 150\)"),
        ((1j * MATRIX,), "`operator` must be a real matrix"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        diagonal(*arguments)
