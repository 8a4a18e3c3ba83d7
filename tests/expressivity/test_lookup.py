"""Tests of "lookup" and "bit-extraction": accuracy, rational arithmetic, parameter counts and radii."""

import dataclasses

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idmatters_tf.expressivity import construct_lookup, evaluate_exactly, memorize, verify

CONSTRUCTIONS = ("lookup", "bit-extraction")


def sample(n, d, classes, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), rng.integers(0, classes, n)


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_every_row_through_the_saved_model(construction, tmp_path):
    x, labels = sample(3000, 8, 10)
    model = memorize(x, labels, construction=construction)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    found = verify(loaded, x, labels)
    assert found.correct == 3000
    assert found.largest_error == 0
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), np.eye(10)[labels])
    report = model.report
    assert report.parameters == model.count_params()
    assert report.parameters < report.unshared
    assert report.lower_bound == np.ceil(3000 * np.log2(10) / 64)
    assert report.parameters > report.lower_bound


def test_bit_extraction_stores_less_than_one_number_a_row():
    x, labels = sample(8000, 3, 10)
    packed, plain = (construct_lookup(x, labels, 10, packed, seed=0) for packed in (True, False))
    assert packed.parameters < packed.unshared
    assert packed.parameters < 0.9 * 8000
    assert 1.8 * 8000 < plain.parameters < 2.4 * 8000
    assert max(plain.thresholds.shape) < 3 * np.sqrt(8000)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("word_bits", [53, 2000])
def test_rational_arithmetic_is_exact(packed, word_bits):
    x, labels = sample(150, 3, 10, seed=1)
    lookup = construct_lookup(x, labels, 10, packed, seed=0, word_bits=word_bits)
    for row, label in zip(x, labels, strict=True):
        name, offset = evaluate_exactly(lookup, row)
        assert name == label
        assert offset > 0


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
@settings(max_examples=15, deadline=None)
def test_any_sample(seed, n, d, classes, construction, exponent):
    rng = np.random.default_rng(seed)
    x = rng.choice([rng.standard_normal((n, d)), rng.integers(-3, 4, (n, d)), rng.standard_cauchy((n, d))])
    x = np.unique(x, axis=0) * 10.0**exponent
    labels = rng.integers(0, classes, len(x))
    model = memorize(x, labels, classes, construction=construction)
    assert verify(model, x, labels).correct == len(x)


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_radius_is_certified_and_tight(construction):
    x, labels = sample(60, 4, 5, seed=3)
    lookup = construct_lookup(x, labels, 5, construction == "bit-extraction", seed=0)
    direction = lookup.kernel / np.linalg.norm(lookup.kernel)
    radii = lookup.margin / np.linalg.norm(lookup.kernel)
    for sign in (-1, 1):
        for row, label, radius in zip(x, labels, radii, strict=True):
            if np.isfinite(radius):
                assert evaluate_exactly(lookup, row + 0.999 * sign * radius * direction)[0] == label
    # Slightly more than a cell beyond the radius, the answer changes in one of the two directions.
    beyond = 0
    for row, label, radius in zip(x, labels, radii, strict=True):
        for sign in (-1, 1):
            moved = row + sign * (radius + 0.3 / np.linalg.norm(lookup.kernel)) * direction
            try:
                beyond += evaluate_exactly(lookup, moved)[0] != label
            except ValueError:
                beyond += 1
    assert beyond >= len(x) - 2


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
        assert verify(memorize(x, np.full(20, 2), 4, construction=construction), x, np.full(20, 2)).correct == 20
        assert verify(memorize(x[:1] * 0, [1], 2, construction=construction), x[:1] * 0, np.array([1])).correct == 1


def test_reports_are_dataclasses():
    x, labels = sample(30, 3, 3)
    report = memorize(x, labels, construction="lookup").report
    assert dataclasses.asdict(report)["construction"] == "lookup"
