"""Tests of `verify_exactly` and `verify` on saved and damaged models, against plain fractions."""

import keras
import numpy as np
import pytest

from idmatters_tf.expressivity import memorize, verify, verify_exactly
from tests.expressivity import exact_networks

CONSTRUCTIONS = ["hardt-ma", "yun", "lookup", "bit-extraction"]
CLASSES = 4
# Three chunks of three changes of the label. The zero row requires a bias in the residual network.
X, LABELS = exact_networks.sample(10, 2, CLASSES, seed=1)
X[0] = 0


def build_memorizer(construction):
    width = {"width": 5} if construction == "hardt-ma" else {}
    return memorize(X, LABELS, CLASSES, construction=construction, check=(), **width)


def compare_with_fractions(model):
    """Check both verifications. Return the largest error."""
    leads, largest = [], 0
    for row, label in zip(X, LABELS, strict=True):
        found = exact_networks.outputs(model, row)
        leads.append(min(found[label] - value for number, value in enumerate(found) if number != label))
        largest = max(largest, *(abs(value - (number == label)) for number, value in enumerate(found)))
    leads, largest = np.array(leads), float(largest)
    exact, rounded = verify_exactly(model, X, LABELS), verify(model, X, LABELS)
    assert (exact.rows, exact.correct) == (len(X), (leads > 0).sum())
    assert exact.wrong_rows == tuple(np.flatnonzero(leads <= 0))
    assert exact.largest_error == largest
    # Rounding may turn a tie into a lead.
    assert (leads > 1e-6).sum() <= rounded.correct <= (leads > -1e-6).sum()
    return largest, rounded


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_saved_model_and_every_weight_array(construction, tmp_path):
    build_memorizer(construction).save(tmp_path / "model.keras")
    model, rng = keras.saving.load_model(tmp_path / "model.keras"), np.random.default_rng(1)
    largest, rounded = compare_with_fractions(model)
    assert rounded.correct == len(X)
    assert largest == 0 if construction in ("lookup", "bit-extraction") else 0 < largest < 1e-8
    noticed = {}
    for layer in model.layers:
        for number in range(len(layer.weights)):
            before = layer.get_weights()
            values = before[number]
            changes = {"zero": 0 * values, "negated": -values, "random": values + rng.standard_normal(values.shape)}
            for damage, changed in changes.items():
                layer.set_weights([*before[:number], changed, *before[number + 1 :]])
                largest, rounded = compare_with_fractions(model)
                if damage == "zero":
                    assert rounded.largest_error == pytest.approx(largest, rel=1e-6, abs=1e-9), layer.name
                noticed.setdefault((layer.name, damage), []).append(largest > 1e-6)
            layer.set_weights(before)
    assert all(any(found) for (_, damage), found in noticed.items() if damage != "random")


def test_outputs_of_zero_and_nan_are_wrong():
    model = build_memorizer("hardt-ma")
    last = model.get_layer("last")
    before = last.get_weights()
    last.set_weights([0 * weight for weight in before])
    found = verify(model, X, LABELS)
    assert (found.correct, found.largest_error, found.wrong_rows) == (0, 1.0, tuple(range(10)))
    last.set_weights([np.nan * weight for weight in before])
    found = verify(model, X, LABELS)
    assert (found.correct, np.isnan(found.largest_error)) == (0, True)
    with pytest.raises(ValueError, match="NaN or infinite weights in layer 'last'"):
        verify_exactly(model, X, LABELS)


def test_label_output_must_exceed_all_others():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3, kernel_initializer="zeros")])
    nan, inf = np.nan, np.inf
    right = [[1.0, 0.0, 0.0], [-1.0, -2.0, -3.0], [inf, 0.0, 0.0]]
    wrong = [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.5, 0.6, 0.0], [inf, inf, 0.0]]
    wrong += [[nan, 0.0, 0.0], [1.0, nan, 0.0], [nan, nan, nan]]
    for outputs in right + wrong:
        model.layers[0].set_weights([np.zeros((1, 3)), np.array(outputs)])
        found = verify(model, np.arange(5.0)[:, None], np.zeros(5, int))
        assert found.correct == 5 * (outputs in right), outputs
        assert found.accuracy == (outputs in right)
    single = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    single.layers[0].set_weights([np.ones((1, 1)), np.array([nan])])
    assert verify(single, np.ones((2, 1)), np.zeros(2, int)).correct == 0


@pytest.mark.parametrize("construction", ["hardt-ma", "lookup"])
def test_other_activations_and_layers_raise(construction):
    model = build_memorizer(construction)
    model.get_layer("last_hidden").activation = keras.activations.softplus
    with pytest.raises(ValueError, match="activation 'softplus' in layer 'last_hidden'"):
        verify_exactly(model, X, LABELS)
    longer = keras.Model(model.inputs, keras.layers.Dense(CLASSES, name="more")(model.outputs[0]))
    with pytest.raises(ValueError, match="must be built by `memorize`"):
        verify_exactly(longer, X, LABELS)


def test_another_activation_of_the_last_layer_is_applied():
    model = build_memorizer("lookup")
    model.get_layer("last").activation = keras.activations.linear
    # Without ReLU the outputs of distant classes are negative.
    assert verify_exactly(model, X, LABELS).largest_error == verify(model, X, LABELS).largest_error == CLASSES - 2


def test_rows_outside_the_range_of_the_dtype_raise():
    model = memorize(X, LABELS, CLASSES, width=5, dtype="float32", check=())
    with pytest.raises(ValueError, match="must be finite in float32"):
        verify_exactly(model, X * 1e200, LABELS)
