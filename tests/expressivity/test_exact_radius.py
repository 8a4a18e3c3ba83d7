"""Tests of certified radii against rational arithmetic: never too large, and at most one float too small."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from idmatters_tf.expressivity import certified_radii, compute_radii, construct, memorize
from idmatters_tf.expressivity._exact_layers import residual_weights
from tests.expressivity.exact_networks import sample, squared_radius


def below_by_one_float(radius, squared):
    """Return True if the radius is the largest float that is at most the root of `squared`."""
    if squared is None:
        return radius == math.inf
    above = math.nextafter(radius, math.inf)
    return Fraction(radius) ** 2 <= squared and (above == math.inf or Fraction(above) ** 2 > squared)


@pytest.mark.parametrize("exponent", [-300, 0, 300])
def test_points_of_any_size(exponent):
    x, labels = sample(12, 3, 3)
    x = x * 10.0**exponent
    model = memorize(x, labels, 3, width=4, check=())
    radii = certified_radii(model, x)
    weights = residual_weights(model)
    for row, radius in zip(x, radii, strict=True):
        assert below_by_one_float(radius, squared_radius(weights, row))
    # Scaling by powers of two is exact.
    if exponent == 0:
        for power in (-900, 900):
            same = memorize(x * 2.0**power, labels, 3, width=4, check=())
            np.testing.assert_array_equal(certified_radii(same, x * 2.0**power), radii * 2.0**power)


def test_inside_the_ball_the_keras_model_is_affine_and_keeps_its_answer():
    x, labels = sample(47, 3, 6)
    model = memorize(x, labels, 6, width=5, check=())
    radii, outputs, rng = certified_radii(model, x), np.array(model(x)), np.random.default_rng(1)
    assert (radii > 0).all()
    for _ in range(5):
        step = rng.standard_normal(x.shape)
        step *= 0.999 * radii[:, None] / np.linalg.norm(step, axis=1, keepdims=True)
        ahead, back = np.array(model(x + step)), np.array(model(x - step))
        assert (ahead.argmax(axis=1) == labels).all()
        np.testing.assert_allclose(ahead + back, 2 * outputs, atol=1e-7)


# Seed; rows, inputs, classes, width; order; offset; distance of pairs of rows; dtype; exponent.
CASES = st.tuples(
    st.integers(0, 2**32 - 1),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from(["norm", "ridge"]),
    st.sampled_from([0.0, 1.0, 1e3, 1e5]),
    st.sampled_from([1.0, 1e-3, 1e-5]),
    st.sampled_from(["float64", "float32"]),
    st.integers(-150, 150),
)


@given(CASES)
@example((1, 8, 3, 3, 4, "norm", 1e5, 1.0, "float64", 0))
@example((2, 8, 3, 3, 4, "norm", 0.0, 1e-5, "float64", 0))
@example((3, 8, 2, 3, 1, "norm", 0.0, 1.0, "float64", 0))
@settings(max_examples=40, deadline=None)
def test_generated_samples_rows_and_dtypes(case):
    seed, n, d, classes, width, order, offset, close, dtype, power = case
    rng = np.random.default_rng(seed)
    x = offset + rng.standard_normal((n, d))
    x[n // 2 :] = x[: n - n // 2] + close * rng.standard_normal((n - n // 2, d))
    x *= 2.0**power
    labels = rng.integers(0, classes, n)
    try:
        weights = construct(x, labels, classes, width, order, seed % 7)
    except ValueError:
        return
    if dtype == "float32":
        names = ("projection", "bias", "U", "s", "V", "last_U", "last_s", "last_V")
        found = {name: getattr(weights, name) for name in names}
        with np.errstate(over="ignore"):
            narrow = {k: v.astype(np.float32).astype(np.float64) for k, v in found.items() if v is not None}
        # Weights beyond the range of float32.
        if not all(np.isfinite(value).all() for value in narrow.values()):
            return
        weights = dataclasses.replace(weights, **narrow)
    # Rows of the sample, and others near them, far away, and at zero, where many units fire.
    rows = np.concatenate([x, 3 * x[:2], x[:1] + rng.standard_normal((1, d)) * 2.0**power, 0 * x[:1]])
    for row, radius in zip(rows, compute_radii(weights, rows), strict=True):
        assert below_by_one_float(radius, squared_radius(weights, row))


@pytest.mark.parametrize("damage", ["zero", "mixed", "random", "equal"])
def test_arbitrary_weights(damage):
    x, labels = sample(9, 2, 3)
    weights, rng = construct(x, labels, 3, 3, "norm", 0), np.random.default_rng(4)
    for name in ("projection", "U", "s", "V", "last_U", "last_s", "last_V"):
        values = getattr(weights, name)
        changed = {
            "zero": 0 * values,
            "mixed": values * 2.0 ** rng.integers(-600, 600, values.shape),
            "random": rng.standard_normal(values.shape),
            "equal": np.ones_like(values),
        }[damage]
        broken = dataclasses.replace(weights, **{name: changed})
        for row, radius in zip(x[:5], compute_radii(broken, x[:5]), strict=True):
            assert below_by_one_float(radius, squared_radius(broken, row)), name


def test_search_on_larger_samples():
    """Test that the search finds the nearest unit, compared with all distances in float64."""
    x, labels = sample(300, 6, 5, seed=3)
    weights = construct(x, labels, 5, 8, "norm", 0)
    radii = compute_radii(weights, x[:40])
    for row, radius in zip(x, radii, strict=False):
        h, J, distances = row @ weights.projection, weights.projection, []
        for U, s, V in zip(weights.U, weights.s, weights.V, strict=True):
            before, gradients = h @ U + s, np.linalg.norm(J @ U, axis=0)
            distances.append(np.abs(before[gradients > 0]) / gradients[gradients > 0])
            fires = before > 0
            h, J = h + before[fires] @ V[fires], J + (J @ U[:, fires]) @ V[fires]
        before, J = h @ weights.last_U + weights.last_s, J @ weights.last_U
        distances.append(np.abs(before) / np.linalg.norm(J, axis=0))
        outputs, J = np.maximum(before, 0) @ weights.last_V, J[:, before > 0] @ weights.last_V[before > 0]
        others = np.arange(5) != outputs.argmax()
        lead = outputs.max() - outputs[others]
        distances.append(lead / np.linalg.norm(J[:, [outputs.argmax()]] - J[:, others], axis=0))
        assert radius == pytest.approx(np.concatenate(distances).min(), rel=1e-9)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[1.0, np.inf]], "`x` must be finite"),
        ([[1.0]], "`x` must have rows of length 2"),
        ([["a", "b"]], "`x` must contain real numbers"),
    ],
)
def test_invalid_points_raise(x, message):
    weights = construct(*sample(5, 2, 2), 2, 2, "norm", 0)
    with pytest.raises(ValueError, match=message):
        compute_radii(weights, x)


def test_other_models_raise():
    x, labels = sample(5, 2, 2)
    model = memorize(x, labels, 2, width=2, check=())
    U, s, V = model.get_layer("blocks").get_weights()
    model.get_layer("blocks").set_weights([U * np.nan, s, V])
    with pytest.raises(ValueError, match="NaN or infinite weights in layer 'blocks'"):
        certified_radii(model, x)
    with pytest.raises(ValueError, match="must be of construction='hardt-ma'"):
        certified_radii(memorize(x, labels, construction="yun", check=()), x)
