"""Tests of `verify_exactly` and `verify` on damaged weight arrays, against plain fractions."""

import keras
import numpy as np
import pytest

from idmatters_tf.expressivity import memorize, verify, verify_exactly
from tests.expressivity import exact_networks

CONSTRUCTIONS = ["hardt-ma", "yun", "lookup", "bit-extraction"]
CLASSES = 4


@pytest.fixture(scope="module")
def sample():
    rng = np.random.default_rng(0)
    return rng.standard_normal((24, 2)), rng.integers(0, CLASSES, 24)


def build_memorizer(sample, construction):
    width = {"width": 5} if construction == "hardt-ma" else {}
    return memorize(*sample, CLASSES, construction=construction, check=(), **width)


def by_hand(model, x, labels):
    """Return the lead of each label's exact output over all others, and the largest error."""
    leads, largest = [], 0
    for row, label in zip(x, labels, strict=True):
        found = exact_networks.outputs(model, row)
        leads.append(min(found[label] - value for number, value in enumerate(found) if number != label))
        largest = max(largest, *(abs(value - (number == label)) for number, value in enumerate(found)))
    return np.array(leads), float(largest)


def arrays_of(model):
    return [(layer, number) for layer in model.layers for number in range(len(layer.weights))]


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
@pytest.mark.parametrize("damage", ["none", "zero", "negated", "random", "one entry"])
def test_every_weight_array(sample, construction, damage):
    x, labels = sample
    model, rng = build_memorizer(sample, construction), np.random.default_rng(1)
    noticed = {}
    for layer, number in arrays_of(model):
        before = layer.get_weights()
        values = before[number].copy()
        entry = np.unravel_index(rng.integers(values.size), values.shape)
        if damage == "one entry":
            values[entry] += 0.75
        changed = {
            "none": values,
            "zero": 0 * values,
            "negated": -values,
            "random": values + rng.standard_normal(values.shape),
            "one entry": values,
        }[damage]
        layer.set_weights([*before[:number], changed, *before[number + 1 :]])
        leads, largest = by_hand(model, x, labels)
        right = leads > 0
        exact, rounded = verify_exactly(model, x, labels), verify(model, x, labels)
        assert exact.correct == right.sum(), layer.name
        assert exact.wrong_rows == tuple(np.flatnonzero(~right)[:10]), layer.name
        assert exact.largest_error == largest, layer.name
        # Rounding may turn a tie into a lead.
        assert (leads > 1e-6).sum() <= rounded.correct <= (leads > -1e-6).sum(), layer.name
        if damage in ("none", "zero"):
            assert rounded.largest_error == pytest.approx(largest, rel=1e-6, abs=1e-9), layer.name
        noticed[layer.name] = noticed.get(layer.name, False) or largest > 1e-6
        layer.set_weights(before)
    if damage == "none":
        assert not any(noticed.values())
    elif damage in ("zero", "negated"):
        assert all(noticed.values())


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_outputs_of_zero_and_nan_are_wrong(sample, construction):
    model = build_memorizer(sample, construction)
    last = model.get_layer("last")
    before = last.get_weights()
    last.set_weights([0 * weight for weight in before])
    found = verify(model, *sample)
    assert (found.correct, found.largest_error, found.wrong_rows) == (0, 1.0, tuple(range(10)))
    assert verify_exactly(model, *sample).correct == 0
    last.set_weights([np.nan * weight for weight in before])
    found = verify(model, *sample)
    assert (found.correct, found.wrong_rows) == (0, tuple(range(10)))
    assert np.isnan(found.largest_error)
    with pytest.raises(ValueError, match="NaN or infinite weights in layer 'last'"):
        verify_exactly(model, *sample)


@pytest.mark.parametrize(
    ("outputs", "correct"),
    [
        ([1.0, 0.0, 0.0], True),
        ([0.0, 0.0, 0.0], False),
        ([1.0, 1.0, 0.0], False),
        ([1.0, 0.0, 1.0], False),
        ([-1.0, -2.0, -3.0], True),
        ([0.5, 0.6, 0.0], False),
        ([np.nan, 0.0, 0.0], False),
        ([1.0, np.nan, 0.0], False),
        ([np.nan, np.nan, np.nan], False),
        ([np.inf, 0.0, 0.0], True),
        ([np.inf, np.inf, 0.0], False),
    ],
)
def test_label_output_must_exceed_all_others(outputs, correct):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3, kernel_initializer="zeros")])
    model.layers[0].set_weights([np.zeros((1, 3)), np.array(outputs)])
    found = verify(model, np.arange(5.0)[:, None], np.zeros(5, int))
    assert found.correct == 5 * correct
    assert found.accuracy == correct


def test_a_single_class_of_nan():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.layers[0].set_weights([np.ones((1, 1)), np.array([np.nan])])
    assert verify(model, np.ones((2, 1)), np.zeros(2, int)).correct == 0


def test_first_wrong_rows_in_order(sample):
    model, (x, labels) = build_memorizer(sample, "hardt-ma"), sample
    assert verify(model, x, (labels + 1) % CLASSES, batch_size=5).wrong_rows == tuple(range(10))


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_other_activations_and_layers_raise(sample, construction):
    model = build_memorizer(sample, construction)
    model.get_layer("last_hidden").activation = keras.activations.softplus
    with pytest.raises(ValueError, match="activation 'softplus' in layer 'last_hidden'"):
        verify_exactly(model, *sample)
    model = build_memorizer(sample, construction)
    longer = keras.Model(model.inputs, keras.layers.Dense(CLASSES, name="more")(model.outputs[0]))
    with pytest.raises(ValueError, match="must be built by `memorize`"):
        verify_exactly(longer, *sample)


def test_another_activation_of_the_last_layer_is_applied(sample):
    model = build_memorizer(sample, "lookup")
    last = model.get_layer("last")
    last.activation = keras.activations.linear
    # Without ReLU the outputs of distant classes are negative.
    assert verify_exactly(model, *sample).largest_error == verify(model, *sample).largest_error == CLASSES - 2


def test_rows_outside_the_range_of_the_dtype_raise(sample):
    x, labels = sample
    model = memorize(x, labels, CLASSES, width=5, dtype="float32", check=())
    with pytest.raises(ValueError, match="must be finite in float32"):
        verify_exactly(model, x * 1e200, labels)
