"""Invalid arguments of public functions."""

import numpy as np
import pytest

from idmatters_tf import linear

RNG = np.random.default_rng(0)
A = 0.1 * RNG.normal(size=(3, 2, 2))
X, Y = RNG.normal(size=(2, 2, 5))
R = np.array([[1.5, 0.4], [-0.3, 0.8]])
UNIT = np.eye(2)
TURN = np.array([[0.0, -1.0], [1.0, 0.0]])
LAYERS = np.zeros((1, 1, 2, 2))
ERRORS = [
    (lambda: linear.compose([[[np.nan]]]), "`A` must be finite. Received: 1 of 1 entries"),
    (lambda: linear.compose([[[1j]]]), "`A` must contain real numbers. Received: dtype complex128"),
    (lambda: linear.population_risk([[1.0, 0.0]], [[1.0]]), r"`A` must have shape \(depth, 1, 1\)"),
    (lambda: linear.population_risk(A, R, [[1.0, 2.0], [0.0, 1.0]]), "`covariance` must be symmetric.*Pass X @ X.T"),
    (lambda: linear.population_risk(A, R, [[1.0, 2.0], [2.0, 1.0]]), "eigenvalue -1"),
    (lambda: linear.dominance_factors(1e-6), r"`norms` must be an array \(..., depth\).* Received: 1e-06"),
    (lambda: linear.dominance_factors([0.5, 1.0]), r"in \[0, 1\). Received: \[0.5 1. \]"),
    (lambda: linear.factorize(R, 4, "best"), "`method` must be one of 'polar', 'paper', 'log', 'psd'. Received"),
    (lambda: linear.factorize(R, 4, "paper"), "`depth` must be 5 or more with method='paper'"),
    (lambda: linear.factorize(np.diag([-1.0, -2.0]), 4, "log"), "no negative eigenvalues with method='log'.*'polar'"),
    (lambda: linear.factorize(TURN, 4, "psd"), "symmetric positive definite with method='psd'"),
    (lambda: linear.factorize([[1.0, 2.0], [2.0, 4.0]], 5), "non-singular.*norm 1 or more"),
    (lambda: linear.zero_hessian_spectrum(1, 1, UNIT, UNIT, slope=0.5), "`slope` is for n = 2"),
    (lambda: linear.least_squares_optimum(X, Y[:, :4]), r"shapes \(2, 5\) and \(2, 4\)"),
    (lambda: linear.whiten(np.outer([1.0, 2.0], np.arange(5.0)), 2), "at most the rank .*, 1. Received: components=2"),
    (lambda: linear.gradient_descent(LAYERS[None], UNIT, UNIT, 0.1, 2.5), "`steps` must be a non-negative integer"),
    (
        lambda: linear.gradient_descent(LAYERS[None], np.diag([1.0, 0.0]), UNIT, 0.1, 1),
        "`syx` must have rows in the range of `sxx`",
    ),
    (lambda: linear.shortcut_risk(LAYERS, UNIT, UNIT, "1"), "`syy_trace` must be a finite number of 0 or more"),
    (lambda: linear.shortcut_gradient(LAYERS, UNIT, UNIT, False), "`syy_trace` must be .* Received: syy_trace=False"),
    (lambda: linear.depth_correlations("smooth", 5), "`parameter` must be positive"),
    (lambda: linear.depth_correlations("fractional", 5, 1.5), "`parameter` must be between 0 and 1"),
    (lambda: linear.identity_start_limit([[1.0, 2.0], [0.0, 1.0]]), "`R` must be symmetric"),
    (lambda: linear.steps_to_loss([[-1.0]], 2, 0.1, 1e-8), "`R` must be positive definite"),
    (lambda: linear.power_projection(UNIT, 2, 0.1, 1, margin=0.0), "`margin` must be positive"),
    (lambda: linear.identity_maps(2, 3, 4), r"`width` must be at least d \+ k = 5"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS, ids=[message for _, message in ERRORS])
def test_errors_name_the_argument_and_the_remedy(call, message):
    with pytest.raises(ValueError, match=message):
        call()
