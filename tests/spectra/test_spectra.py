"""Eigenvalues, densities and traces of known spectra, and their standard errors over many seeds."""

import dataclasses

import numpy as np
import pytest
import scipy.integrate
import scipy.sparse
import scipy.sparse.linalg
from hypothesis import given
from hypothesis import strategies as st

from idmatters_tf import linear
from idmatters_tf.spectra import Estimate, spectral_density, summarize, top_eigenpairs, trace
from idmatters_tf.spectra.density import bounded_percentile


def planted(eigenvalues, seed=0):
    """Return a symmetric matrix with the given eigenvalues and Haar-distributed eigenvectors."""
    basis, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(eigenvalues),) * 2))
    return basis * np.asarray(eigenvalues) @ basis.T


@given(st.integers(0, 2**32 - 1), st.sampled_from(["largest", "smallest", "magnitude", "both"]), st.integers(1, 3))
def test_extreme_eigenpairs_of_random_spectra(seed, which, k):
    rng = np.random.default_rng(seed)
    values = np.sort(rng.normal(size=rng.integers(8, 60)) * 10 ** rng.uniform(-2, 2))
    matrix = planted(values, seed)
    pairs = top_eigenpairs(matrix, k, which)
    expected = {
        "largest": values[::-1][:k],
        "smallest": values[:k][::-1],
        "magnitude": np.sort(values[np.argsort(np.abs(values))[-k:]])[::-1],
        "both": np.r_[values[::-1][:k], values[:k][::-1]],
    }[which]
    size = np.abs(values).max()
    np.testing.assert_allclose(pairs.values, expected, atol=1e-8 * size)
    np.testing.assert_allclose(pairs.vectors.T @ pairs.vectors, np.eye(len(expected)), atol=1e-8)
    np.testing.assert_allclose(matrix @ pairs.vectors, pairs.vectors * pairs.values, atol=1e-4 * size)
    assert pairs.residuals.max() < 1e-4 * size


def test_repeated_eigenvalues_are_found_with_multiplicity():
    """Check multiplicities R d at Li et al.'s zero point, of which a single Lanczos vector finds one copy."""
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(2, 10, 40))
    statistics = linear.sufficient_statistics(X, Y)
    operator = linear.ShortcutHessian(np.zeros((4, 2, 10, 10)), statistics.sxx, statistics.syx)
    values = linear.zero_hessian_spectrum(4, 2, statistics.sxx, statistics.syx)
    pairs = top_eigenpairs(operator, 3, "both")
    expected = np.r_[values[::-1][:3], values[:3][::-1]]
    assert np.ptp(expected[-3:]) < 1e-12
    np.testing.assert_allclose(pairs.values, expected, atol=1e-10)
    np.testing.assert_allclose(pairs.vectors.T @ pairs.vectors, np.eye(len(expected)), atol=1e-10)
    assert pairs.residuals.max() < 1e-8


def diagonal_operator(diagonal, dtype: type = np.float32):
    diagonal = np.asarray(diagonal, dtype)

    def multiply(vectors):
        return (diagonal * np.asarray(vectors, dtype).T).T

    return scipy.sparse.linalg.LinearOperator((len(diagonal),) * 2, multiply, matmat=multiply, dtype=dtype)


BULK = np.random.default_rng(0).uniform(-1, 1, 9_999)
THREE_PARTS = np.r_[np.full(60, -1.0), np.zeros(40), np.linspace(0.5, 3, 100)]


@pytest.mark.parametrize(
    ("diagonal", "k", "which", "error"),
    [
        # Eigenvalues far below the largest one, in many dimensions.
        (np.r_[1, 1e-3 * BULK], 1, "both", 1e-5),
        (1e30 * np.r_[1, 1e-3 * BULK], 1, "both", 1e-5),
        (np.r_[3968, 16.5, 13.5, -9, -18.1, 0.5 * np.tile(BULK, 20)], 2, "both", 1e-6),
        # A spectrum like that of a network with batch normalization.
        (np.r_[-1464, 24, 12 * np.tile(BULK, 2)], 1, "largest", 1e-6),
        # Krylov spaces of three dimensions.
        (np.r_[6e5, 4e5, 2e5, np.zeros(397)], 5, "largest", 1e-6),
        (1e-30 * np.r_[6e5, 4e5, 2e5, np.zeros(397)], 5, "magnitude", 1e-6),
        # The basis has almost as many vectors as the space has dimensions.
        (BULK[:105], 13, "both", 1e-6),
    ],
)
def test_eigenvalues_in_float32(diagonal, k, which, error):
    diagonal = np.sort(diagonal.astype(np.float32).astype(np.float64))
    pairs = top_eigenpairs(diagonal_operator(np.random.default_rng(0).permutation(diagonal)), k, which)
    ends = {"largest": diagonal[-k:], "magnitude": diagonal[-k:], "both": np.r_[diagonal[:k], diagonal[-k:]]}
    expected, scale = ends[which][::-1], np.abs(diagonal).max()
    np.testing.assert_allclose(pairs.values, expected, rtol=0, atol=error * scale)
    assert (np.abs(pairs.values - expected) <= pairs.residuals + 1e-7 * scale).all()
    assert pairs.converged.all()
    assert pairs.products < 200


def test_eigenpairs_that_do_not_converge_warn():
    decades = diagonal_operator(np.logspace(0, -15, 2000), np.float64)
    with pytest.warns(
        UserWarning, match=r"0 of 2 eigenpairs converged within 3\d\d products. .*Increase `max_products`"
    ):
        pairs = top_eigenpairs(decades, 2, "smallest", max_products=300)
    assert not pairs.converged.any()
    assert (pairs.values - 1e-15 <= pairs.residuals).all()
    # If the dense matrix is cheaper, it ends the iterations.
    pairs = top_eigenpairs(diagonal_operator(np.logspace(0, -15, 200), np.float64), 2, "smallest")
    np.testing.assert_allclose(pairs.values, np.logspace(0, -15, 200)[-2:], atol=1e-16)
    assert pairs.products < 420
    # The rounding of products in float16 does not allow smaller residuals.
    matrix = planted(np.r_[100, 60, np.linspace(-1, 1, 398)]).astype(np.float32)
    rounded = scipy.sparse.linalg.LinearOperator(
        matrix.shape, lambda vector: (matrix @ np.ravel(vector)).astype(np.float16).astype(np.float32), dtype=np.float32
    )
    with pytest.warns(UserWarning, match="0 of 1 eigenpairs converged .*Increase `tolerance`, or use float64"):
        assert top_eigenpairs(rounded).products < 20


def test_a_zero_operator_has_zero_eigenvalues():
    zero = scipy.sparse.linalg.LinearOperator((50, 50), matvec=np.zeros_like, dtype=np.float64)
    pairs = top_eigenpairs(zero, 2, "both")
    np.testing.assert_array_equal(pairs.values, np.zeros(4))
    np.testing.assert_allclose(pairs.vectors.T @ pairs.vectors, np.eye(4), atol=1e-12)


def test_start_from_earlier_eigenvectors_saves_products():
    values = np.r_[np.linspace(-1, 1, 397), 1.1, 1.2, 1.3]
    matrix, change = planted(values), planted(np.random.default_rng(1).normal(size=400), 1)
    before = top_eigenpairs(matrix, 2, tolerance=1e-6)
    moved = matrix + 1e-4 * change
    cold, warm = (top_eigenpairs(moved, 2, tolerance=1e-3, start=start) for start in (None, before.vectors))
    np.testing.assert_allclose(warm.values, cold.values, atol=1e-4)
    assert warm.products < 0.75 * cold.products
    # The largest pair is found from exact eigenvectors of the second largest pair.
    exact = np.linalg.eigh(matrix)[1]
    for tolerance, error in ((None, 1e-8), (1e-2, 1e-3)):
        pairs = top_eigenpairs(matrix, 1, tolerance=tolerance, start=exact[:, -2:-1])
        np.testing.assert_allclose(pairs.values, [1.3], atol=error)
    with pytest.raises(ValueError, match=r"`start` must have shape \(400, j\). Received: shape \(2, 400\)"):
        top_eigenpairs(matrix, 2, start=before.vectors.T)


def test_summary_of_a_spectrum():
    summary = summarize([-4.0, -1e-15, 0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0])
    assert dataclasses.astuple(summary) == (4.0, pytest.approx(0, abs=1e-13), np.inf, 1 / 11, -4.0, 3.0)
    assert summarize([-4.0, -1e-14, 1.0], tolerance=0).index == pytest.approx(2 / 3)
    assert summarize(np.array([-128, 1, 100], np.int8)).max_abs == 128
    values = np.random.default_rng(0).normal(size=100)
    assert summarize(values).condition == pytest.approx(np.abs(values).max() / np.percentile(np.abs(values), 10))


@given(st.integers(0, 2**32 - 1))
def test_lanczos_finds_a_spectrum_of_few_values(seed):
    """Check that the nodes are the distinct eigenvalues after as many steps, and that the weights sum to 1."""
    rng = np.random.default_rng(seed)
    distinct = np.sort(rng.choice(np.arange(-10, 11), 4, replace=False)).astype(float)
    values = rng.permutation(np.repeat(distinct, [5, 3, 7, 2]))
    density = spectral_density(planted(values, seed), probes=3, steps=9, seed=seed)
    np.testing.assert_allclose(density.weights.sum(axis=1), 1)
    for nodes, weights in zip(density.nodes, density.weights, strict=True):
        there = weights > 1e-12
        np.testing.assert_allclose(np.abs(nodes[there, None] - distinct).min(axis=1), 0, atol=1e-8)
    assert scipy.integrate.trapezoid(density.density, density.grid) == pytest.approx(1, abs=1e-2)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_estimates_scale_with_the_operator(size):
    values = np.r_[np.linspace(-1, 1, 99), 3]
    one, scaled = (spectral_density(planted(factor * values), 3, 20) for factor in (1, size))
    np.testing.assert_allclose(size * scaled.density, one.density, atol=1e-10)
    np.testing.assert_allclose(size * scaled.standard_error, one.standard_error, atol=1e-10)
    one, scaled = (trace(planted(factor * values), 30) for factor in (1, size))
    np.testing.assert_allclose(np.array(scaled.interval()) / size, one.interval(), rtol=1e-10)
    # Also of small rank.
    pairs = top_eigenpairs(planted(size * np.r_[1, 0.5, 0.25, np.zeros(97)]), 5)
    np.testing.assert_allclose(pairs.values / size, [1, 0.5, 0.25, 0, 0], atol=1e-14)


def test_the_recurrence_continues_below_an_outlier():
    # Without full reorthogonalization there would be copies of the outlier.
    density = spectral_density(planted(np.r_[1e4, np.linspace(-1, 1, 299)]), probes=2, steps=100)
    assert (density.nodes > 100).sum() == 2
    density = spectral_density(diagonal_operator(np.r_[1, 1e-3 * np.tile(BULK, 10)]), 1, 15)
    assert density.mean(lambda nodes: nodes < -5e-4).value == pytest.approx(0.25, abs=0.06)


def test_density_and_index_with_their_errors_over_many_seeds():
    matrix = planted(THREE_PARTS)
    runs = [spectral_density(matrix, probes=8, steps=60, points=50, seed=seed) for seed in range(40)]
    indices, errors = np.array([(run.index().value, run.index().standard_error) for run in runs]).T
    # The mean is within four standard errors, and the reported errors equal the observed spread.
    assert abs(indices.mean() - 0.3) < 4 * indices.std() / np.sqrt(len(runs))
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(indices.std(), rel=0.3)
    means = np.array([run.mean(lambda nodes: nodes).value for run in runs])
    assert abs(means.mean() - THREE_PARTS.mean()) < 4 * means.std() / np.sqrt(len(runs))


@pytest.mark.parametrize(
    ("eigenvalues", "is_resolved"),
    [
        (np.r_[np.zeros(50), np.linspace(0.5, 1, 950)], True),
        (np.r_[np.zeros(110), np.linspace(0.5, 1, 890)], False),
        (np.linspace(-1, 1, 1000), False),
        (np.r_[-np.linspace(1, 2, 300), np.linspace(1, 2, 700)], True),
    ],
    ids=["5 % zeros", "11 % zeros", "smooth", "gap"],
)
def test_percentiles_by_quadrature_are_within_their_errors(eigenvalues, is_resolved):
    exact, found = np.percentile(np.abs(eigenvalues), 10), []
    for seed in range(40):
        density = spectral_density(diagonal_operator(eigenvalues, np.float64), 1, 32, seed=seed)
        found.append(bounded_percentile(density.nodes[0], density.weights[0], 1000))
    assert np.mean([abs(value - exact) <= error for value, error in found]) > 0.9
    # Rademacher vectors have equal weights.
    assert (np.mean([error < value for value, error in found]) > 0.9) == is_resolved


def test_coverage_of_intervals():
    matrix, inside = planted(THREE_PARTS), []
    for seed in range(200):
        density = spectral_density(matrix, 3, 12, points=2, seed=seed)
        for estimate, expected in (
            (density.mean(lambda nodes: nodes), THREE_PARTS.mean()),
            (trace(matrix, 9, seed), THREE_PARTS.sum()),
        ):
            low, high = estimate.interval()
            inside.append(low <= expected <= high)
    # 400 intervals at 95 %: three standard errors are 3.3 %. Normal quantiles would cover 0.85 with three samples.
    assert 0.915 < np.mean(inside) < 0.985


def test_with_enough_products_the_trace_is_exact():
    matrix = planted(np.linspace(-1, 3, 20))
    operator = scipy.sparse.linalg.aslinearoperator(matrix)
    estimate = trace(operator, 20)
    assert estimate == Estimate(estimate.value, 0.0, 20)
    assert estimate.interval() == (pytest.approx(20.0), pytest.approx(20.0))
    # A rank of at most a third of the products is also exact.
    low = planted(np.r_[5.0, -2.0, np.zeros(48)])
    assert trace(low, 12).value == pytest.approx(3.0)
    assert trace(low, 12).standard_error < 1e-12


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda A: top_eigenpairs(A, which="LM"), "`which` must be one of 'largest'"),
        (lambda A: top_eigenpairs(A, k=6, which="both"), "`k` must select 1 to 10 eigenvalues"),
        (lambda A: trace(A, 12).interval(95), "`level` must be between 0 and 1"),
        (lambda A: spectral_density(A, bandwidth=-1.0), "`bandwidth` must be positive"),
        (lambda A: trace(A, 3), "`products` must be at least 6"),
        (lambda A: trace(1j * A), "`operator` must be a real matrix, or an operator of .*Received: dtype complex128"),
        (lambda A: top_eigenpairs(scipy.sparse.linalg.aslinearoperator(A.astype("float16"))), "dtype float16"),
        (lambda A: top_eigenpairs(np.nan * A), "Products with `operator` must be finite"),
        (lambda A: spectral_density(np.nan * A), "Products with `operator` must be finite"),
        (lambda A: summarize([]), "`eigenvalues` must be a non-empty list"),
        (lambda A: summarize([np.nan]), "`eigenvalues` must be finite"),
    ],
)
def test_invalid_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.eye(10))
