"""Names of the classes in a saved model."""

import keras
import numpy as np
import pytest

from idmatters_tf.layers import ClassNames
from tests.support.checks import check_layer, check_saving


def test_logits_pass_and_names_are_saved(tmp_path):
    logits = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    check_layer(ClassNames(["cat", "dog", "Übersee"]), logits, expected=logits, atol=0)
    inputs = keras.Input((3,))
    model = keras.Model(inputs, ClassNames(("cat", "dog", "Übersee"), name="classes")(inputs))
    reloaded = check_saving(model, logits, tmp_path / "model.keras")
    assert reloaded.get_layer("classes").class_names == ("cat", "dog", "Übersee")


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float64"])
def test_logits_keep_their_dtype(policy):
    logits = np.float32([[1 / 3, 100.1]])
    layer = ClassNames(["cat", "dog"], dtype=policy)
    np.testing.assert_array_equal(layer(logits), logits)
    assert layer(keras.Input((2,), dtype="float32")).dtype == layer(logits).dtype == "float32"


def test_bad_arguments():
    for names in ([], [1, 2]):
        with pytest.raises(ValueError, match="`class_names` must be one string for each class"):
            ClassNames(names)
    with pytest.raises(ValueError, match="has 2 class names for 3 logits"):
        ClassNames(["a", "b"])(keras.Input((3,)))
