"""Tests of the construction of Theorem 3.2 against a plain forward pass, the theorem's bounds and brute force."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from idmatters_tf.expressivity import check_assumption
from idmatters_tf.expressivity.construction import construct


def outputs_of(weights, x):
    """Evaluate the network as in the paper, one block after the other."""
    h = x @ weights.projection + (0 if weights.bias is None else weights.bias)
    for U, s, V in zip(weights.U, weights.s, weights.V, strict=True):
        h = h + np.maximum(h @ U + s, 0) @ V
    return np.maximum(h @ weights.last_U + weights.last_s, 0) @ weights.last_V


def sample(kind, n, dim, classes, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, dim))
    if kind == "clusters":
        x = rng.standard_normal((3, dim))[rng.integers(0, 3, n)] + 1e-2 * x
    elif kind == "pairs":
        x[n // 2 :] = x[: n - n // 2] + 1e-3 * rng.standard_normal((n - n // 2, dim))
    elif kind == "zero and far":
        x *= 10.0 ** rng.integers(-3, 3, (n, 1))
        x[0] = 0
    elif kind == "twelve decades":
        x *= 10.0 ** -np.linspace(0, 12, n)[:, None]
    elif kind == "images":
        x = rng.integers(0, 256, (n, dim)).astype(np.uint8)
    labels = rng.integers(0, classes, n)
    first = np.unique(x, axis=0, return_index=True)[1]
    return x[first], labels[first]


@given(
    kind=st.sampled_from(["normal", "clusters", "pairs", "zero and far", "twelve decades", "images"]),
    scale=st.sampled_from([1e-290, 1e-200, 1.0, 1e160, 1e290]),
    n=st.integers(1, 90),
    dim=st.integers(1, 40),
    classes=st.integers(1, 60),
    width=st.integers(1, 24),
    order=st.sampled_from(["norm", "ridge"]),
    seed=st.integers(0, 10**6),
)
def test_any_sample_at_any_width_and_scale(kind, scale, n, dim, classes, width, order, seed):
    x, labels = sample(kind, n, dim, classes, seed)
    x = x if scale == 1 else x * scale
    weights = construct(x, labels, classes, width, order, seed=seed)
    # Rounding grows with the inverse margins of the points, and of the surrogates in one and two dimensions.
    tolerance = 1e-3 if kind == "twelve decades" else 1e-6 if width > 2 else 1e-4
    if weights.margins.min() > 1e-9:
        np.testing.assert_allclose(outputs_of(weights, x), np.eye(classes)[labels], atol=tolerance)


@pytest.mark.parametrize("order", ["norm", "ridge"])
def test_each_unit_fires_for_its_own_point_and_no_later_one(order):
    x, labels = sample("clusters", 70, 12, 5, seed=1)
    weights = construct(x, labels, 5, 8, order, seed=0)
    h = x @ weights.projection
    units, s = weights.U.transpose(0, 2, 1).reshape(-1, 8)[: len(x)], weights.s.ravel()[: len(x)]
    fires = units @ h[weights.order].T + s[:, None] > 0
    assert fires.diagonal().all()
    assert not np.triu(fires, 1).any()
    # Cauchy-Schwarz bounds the margin by half the squared distance to the nearest later point or surrogate label.
    norms = np.linalg.norm(h, axis=1)[weights.order]
    assert (np.diff(norms) <= 0).all()
    distances = np.linalg.norm(h[weights.order][:, None] - h[weights.order][None], axis=2)
    distances[np.tri(len(x), dtype=bool)] = np.inf
    bound = np.minimum(distances.min(axis=1) ** 2 / 2 / norms**2, 0.5)
    assert (weights.margins >= bound * (1 - 1e-6) - 1e-7).all()


def test_ridge_never_has_a_smaller_margin_and_a_larger_one_on_near_pairs():
    x, labels = sample("pairs", 400, 20, 5, seed=2)
    norm, ridge = (construct(x, labels, 5, 32, order, seed=0).margins for order in ("norm", "ridge"))
    assert (ridge >= norm - 1e-7).all()
    near = norm < 1e-2
    assert 150 < near.sum() < 250
    assert np.median(ridge[near] / norm[near]) > 2.5
    assert ridge.min() > 10 * norm.min()


# The paper's constants.


def on_the_sphere(n, dim, seed):
    x = np.random.default_rng(seed).standard_normal((n, dim))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_the_papers_quantities_against_brute_force():
    x = on_the_sphere(60, 9, seed=0)
    checked = check_assumption(3 * x, np.arange(60) % 4, width=20, seed=5)
    rng = np.random.default_rng(5)
    Z = x @ rng.standard_normal((9, 20)) / np.sqrt(20)
    q = rng.standard_normal((4, 20))
    everything = np.concatenate([Z, q / np.linalg.norm(q, axis=1, keepdims=True)])
    assert check_assumption(x * 10.0 ** np.linspace(-200, 160, 60)[:, None]).rho == pytest.approx(checked.rho)
    pairs = [(i, j) for i in range(60) for j in range(i + 1, 64)]
    assert checked.rho == pytest.approx(min(np.sum((x[i] - x[j]) ** 2) for i, j in pairs if j < 60))
    distance = min(np.linalg.norm(everything[i] - everything[j]) for i, j in pairs)
    deviation = np.abs(np.sum(Z**2, axis=1) - 1).max()
    assert checked.smallest_distance == pytest.approx(distance)
    assert checked.norm_deviation == pytest.approx(deviation)
    assert checked.printed_excess == pytest.approx(3 * deviation - distance)
    assert checked.excess == pytest.approx(6 * deviation - distance**2)
    assert checked.largest_other == pytest.approx(max(everything[i] @ everything[j] for i, j in pairs))
    assert checked.paper_width == np.ceil(10 * np.log(60) / checked.rho**2)


@pytest.mark.slow
def test_paper_width_fails_in_ten_of_ten_draws():
    for seed in range(10):
        x = on_the_sphere(1000, 3072, seed)
        rho = check_assumption(x, width=1).rho
        checked = check_assumption(x, width=int(np.ceil(10 * np.log(1000) / rho**2)), seed=seed)
        assert checked.width == checked.paper_width < 100
        assert not checked.some_threshold_works


def test_four_log_classes_are_too_few_dimensions_for_surrogate_labels():
    classes = 1000
    x = on_the_sphere(3, 5, seed=0)
    for factor, few in ((4, True), (16, False)):
        width = int(np.ceil(factor * np.log(classes)))
        products = [
            check_assumption(x, np.zeros(3, int), classes, width=width, seed=seed).surrogate_product
            for seed in range(5)
        ]
        assert (min(products) > 0.5) if few else (np.median(products) < 0.55)


def test_the_papers_threshold_works_where_its_condition_holds():
    x, labels = np.eye(12), np.arange(12) % 3
    checked = check_assumption(x, labels, width=400, seed=1)
    assert checked.excess <= 0
    assert checked.paper_threshold_works
    assert checked.some_threshold_works
