"""Tests of "lookup" and "bit-extraction": accuracy, rational arithmetic and parameter counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idmatters_tf.expressivity import construct_lookup, evaluate_exactly, lower_bound, memorize, verify
from tests.expressivity.exact_networks import sample

CONSTRUCTIONS = ("yun", "lookup", "bit-extraction")


@pytest.mark.parametrize("construction", CONSTRUCTIONS[1:])
def test_model_and_report(construction):
    x, labels = sample(1000, 8, 10)
    model = memorize(x, labels, construction=construction)
    np.testing.assert_array_equal(model(x), np.eye(10)[labels])
    report = model.report
    assert report.parameters == model.count_params()
    assert report.parameters < report.unshared
    assert report.lower_bound == np.ceil(1000 * np.log2(10) / 64)
    assert report.parameters > report.lower_bound


def test_bit_extraction_stores_less_than_one_number_a_row():
    x, labels = sample(8000, 3, 10)
    packed, plain = (construct_lookup(x, labels, 10, packed, seed=0) for packed in (True, False))
    assert packed.parameters < packed.unshared
    assert packed.parameters < 0.9 * 8000
    assert 1.8 * 8000 < plain.parameters < 2.4 * 8000
    assert max(plain.thresholds.shape) < 3 * np.sqrt(8000)


@pytest.mark.parametrize(("packed", "word_bits"), [(False, 53), (True, 53), (True, 2000)])
def test_rational_arithmetic_is_exact(packed, word_bits):
    x, labels = sample(80, 3, 10, seed=1)
    lookup = construct_lookup(x, labels, 10, packed, seed=0, word_bits=word_bits)
    for row, label in zip(x, labels, strict=True):
        name, offset = evaluate_exactly(lookup, row)
        assert name == label
        assert offset > 0
    # On the ramp of an eighth of a cell below a threshold, the output is between two labels.
    edge = lookup.boundaries[0] + int(lookup.thresholds[0, 1]) - 1 / 16
    with pytest.raises(ValueError, match="must not be on an edge between two labels"):
        evaluate_exactly(lookup, (edge - lookup.bias) * lookup.kernel / (lookup.kernel @ lookup.kernel))


def test_parameters_grow_as_the_square_root_with_long_numbers():
    counts = []
    for n in (400, 1600, 6400):
        x, labels = sample(n, 2, 10)
        lookup = construct_lookup(x, labels, 10, True, seed=0, word_bits=10**6)
        counts.append(len(lookup.boundaries) + lookup.table().shape[1])
        assert lookup.thresholds.shape[1] == lookup.per_word
    np.testing.assert_allclose(np.diff(np.log2(counts)), 1.0, atol=0.15)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 60),
    st.integers(1, 5),
    st.integers(1, 20),
    st.sampled_from(CONSTRUCTIONS),
    st.floats(-290, 290),
)
@settings(max_examples=18, deadline=None)
def test_any_sample(seed, n, d, classes, construction, exponent):
    rng = np.random.default_rng(seed)
    x = rng.choice([rng.standard_normal((n, d)), rng.integers(-3, 4, (n, d)), rng.standard_cauchy((n, d))])
    x = np.unique(x, axis=0) * 10.0**exponent
    labels = rng.integers(0, classes, len(x))
    model = memorize(x, labels, classes, construction=construction, check=())
    assert verify(model, x, labels).correct == len(x)


def test_thresholds_are_in_the_middle_of_the_gaps():
    x, labels = sample(400, 4, 5, seed=6)
    lookup = construct_lookup(x, labels, 5, packed=False, seed=0)
    t = x @ lookup.kernel
    order = np.argsort(t)
    t, names, margin = t[order], labels[order], lookup.margin[order]
    # Points before and after a change of the label, and neighboring gaps that limit them.
    changes = np.flatnonzero(names[1:] != names[:-1])
    gaps = t[changes + 1] - t[changes]
    reached = np.minimum(margin[changes], margin[changes + 1])
    inner = np.minimum.reduce([gaps, np.append(np.inf, gaps[:-1]), np.append(gaps[1:], np.inf)])
    assert (reached >= inner / 2 - 0.76).all()


def test_lower_bound_counts_labellings_and_patterns():
    for rows, classes, bits in ((7, 1, 64), (50, 2, 4), (333, 3, 53), (1, 1000, 4), (50, 10, 64), (50_000, 10, 64)):
        numbers = lower_bound(rows, classes, bits)
        # There are enough patterns for all labellings, but not with one number less.
        assert 2 ** (bits * numbers) >= classes**rows
        assert numbers == 0 or 2 ** (bits * (numbers - 1)) < classes**rows
    # The bound for CIFAR-10 is the same without NaN and infinity, whose exponents are all ones.
    assert numbers == 2596
    assert (2**64 - 2**53) ** 2596 >= 10**50_000 > (2**64 - 2**53) ** 2595


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 16}, "`width` and `order` are for construction='hardt-ma'"),
        ({"dtype": "float32"}, "`dtype` must be 'float64' for construction='lookup'"),
        ({"construction": "best"}, "`construction` must be one of 'hardt-ma', 'yun', 'lookup', 'bit-extraction'"),
    ],
)
def test_invalid_arguments_raise(arguments, message):
    x, labels = sample(10, 2, 3)
    with pytest.raises(ValueError, match=message):
        memorize(x, labels, **{"construction": "lookup", **arguments})


def test_excessive_rounding_raises():
    x, labels = sample(2000, 2, 10)
    with pytest.raises(ValueError, match=r"float64 is not enough for 2,000 rows|to the same number"):
        memorize(x + 1e10, labels, construction="bit-extraction")


def test_one_label_and_one_row():
    x, _ = sample(20, 3, 2)
    for construction in CONSTRUCTIONS:
        for points, label, classes in ((x, 2, 4), (x[:1] * 0, 1, 2)):
            labels = np.full(len(points), label)
            model = memorize(points, labels, classes, construction=construction, check=())
            assert verify(model, points, labels).correct == len(points)
