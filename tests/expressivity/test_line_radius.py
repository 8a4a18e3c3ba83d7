"""Tests of the radii of constructions on a line against rational arithmetic and at any scale of the points."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from idmatters_tf.expressivity import construct_lookup, construct_three_layers, lower_bound, memorize
from idmatters_tf.expressivity._dyadic import Dyadic, root_below
from idmatters_tf.expressivity.lookup_network import lookup_network, three_layers_network
from tests.expressivity import exact_networks

CONSTRUCTIONS = ("yun", "lookup", "bit-extraction")


def constructed(construction, x, labels, classes):
    if construction == "yun":
        found = construct_three_layers(x, labels, classes, 0)
        return found, three_layers_network(found)
    found = construct_lookup(x, labels, classes, construction == "bit-extraction", 0)
    return found, lookup_network(found)


def answers(model, places, monkeypatch):
    """Return the class with the largest exact output at positions on the line, None for ties."""
    weights = exact_networks.weights_of(model)
    for place in places:
        with monkeypatch.context() as patched:
            # The projection of the row 1 is the position.
            patched.setattr(
                exact_networks,
                "weights_of",
                lambda _, place=place: {**weights, "projection": [[[place]], [Fraction(0)]]},
            )
            found = exact_networks.outputs(model, np.ones(1))
        first, second = sorted(found)[-2:] if len(found) > 1 else (-1, *found)
        yield None if first == second else found.index(second)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(2, 5),
    st.sampled_from(CONSTRUCTIONS),
    st.sampled_from([0.0, 1e3, 1e8]),
    st.sampled_from([1.0, 1e-6]),
)
@example(0, 12, 3, 4, "yun", 1e8, 1.0)
@example(0, 12, 3, 4, "lookup", 1e8, 1.0)
@example(0, 12, 3, 4, "bit-extraction", 1e8, 1.0)
@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_inside_the_radius_the_answer_stays(seed, n, d, classes, construction, offset, close):
    rng = np.random.default_rng(seed)
    x = offset + rng.standard_normal((n, d))
    x[n // 2 :] = x[: n - n // 2] + close * rng.standard_normal((n - n // 2, d))
    labels = rng.integers(0, classes, n)
    try:
        found, model = constructed(construction, x, labels, classes)
    except ValueError:
        return
    kernel = [Fraction(float(value)) for value in found.kernel]
    norm = Fraction(root_below(sum(value * value for value in kernel)))
    with pytest.MonkeyPatch.context() as monkeypatch:
        for row, label, radius in zip(x, labels, found.radii, strict=True):
            t = sum(weight * Fraction(float(value)) for weight, value in zip(kernel, row, strict=True))
            t += Fraction(float(found.bias))
            reach = Fraction(radius) * norm
            places = [t + reach * step for step in (-1, Fraction(-1, 2), 0, Fraction(1, 2), 1)]
            assert list(answers(model, places, monkeypatch)) == [label] * 5


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_radii_are_tight_on_well_conditioned_points(construction):
    rng = np.random.default_rng(1)
    x, labels = rng.standard_normal((40, 3)), rng.integers(0, 4, 40)
    found, model = constructed(construction, x, labels, 4)
    norm = np.linalg.norm(found.kernel)
    lost = 0
    with pytest.MonkeyPatch.context() as monkeypatch:
        for row, label, radius in zip(x, labels, found.radii, strict=True):
            t = float(row @ found.kernel + found.bias)
            # Slightly beyond the radius the answer changes on one side. Thresholds of tables are an eighth wide.
            beyond = radius * norm * (1 + 1e-9) + (0 if construction == "yun" else 0.13)
            places = [Fraction(t + sign * beyond) for sign in (-1, 1)]
            lost += list(answers(model, places, monkeypatch)) == [label] * 2
    assert lost <= (0 if construction == "yun" else 3)


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
@pytest.mark.parametrize("power", [-990, -700, 700, 990])
def test_radii_grow_with_the_points(construction, power):
    rng = np.random.default_rng(2)
    x, labels = rng.standard_normal((30, 3)), rng.integers(0, 4, 30)
    plain, same = (memorize(points, labels, 4, construction=construction).report for points in (x, x * 2.0**power))
    for name in ("smallest_radius", "median_radius"):
        expected = math.ldexp(getattr(plain, name), power)
        assert expected * (1 - 1e-15) <= getattr(same, name) <= expected


def test_lower_bound_counts_labellings_and_patterns():
    for classes in (1, 2, 3, 10, 1000):
        for rows in (1, 7, 50, 333):
            for bits in (4, 53, 64):
                numbers = lower_bound(rows, classes, bits)
                # There are enough patterns for all labellings, but not with one number less.
                assert 2 ** (bits * numbers) >= classes**rows
                assert numbers == 0 or 2 ** (bits * (numbers - 1)) < classes**rows


def test_the_bound_for_cifar_counts_all_patterns_of_a_float64():
    patterns = 2 ** (8 * np.float64().nbytes)
    assert patterns**2596 >= 10**50_000 > patterns**2595
    # The bound is the same without NaN and infinity, whose exponents are all ones.
    assert (patterns - 2**53) ** 2596 >= 10**50_000 > (patterns - 2**53) ** 2595
    # Mantissas with both signs and several exponents are distinct numbers, more than 53 bits represent.
    assert len({sign * 2.0**e * (1 + m / 4) for sign in (-1, 1) for e in range(-3, 5) for m in range(4)}) == 2**6
    assert lower_bound(50_000, 10) == 2596


def test_dyadic_products_in_slices_are_exact():
    rng = np.random.default_rng(3)
    left = rng.standard_normal((3, 700)) * 10.0 ** rng.integers(-9, 9, (3, 700))
    right = rng.standard_normal((700, 5))
    left[0, :5] = 0
    product = (Dyadic.exactly(left) @ Dyadic.exactly(right)).fractions()
    for place, (row, column) in enumerate((row, column) for row in left for column in right.T):
        assert product[place] == sum(Fraction(a) * Fraction(b) for a, b in zip(row, column, strict=True))
