"""Layers of exported models: standardization against TensorFlow's, names."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from idmatters_tf.layers import ClassNames, PerImageStandardization
from tests.support.checks import check_layer, check_saving

rng = np.random.default_rng(1)


@given(st.integers(1, 5), st.integers(0, 255))
def test_standardization_equals_tensorflows(size, value):
    images = np.concatenate([rng.integers(0, 256, (2, size, size, 3)), np.full((1, size, size, 3), value)])
    expected = tf.image.per_image_standardization(tf.cast(images, tf.float32))
    np.testing.assert_allclose(PerImageStandardization()(images.astype("uint8")), expected, atol=1e-4)
    outputs = PerImageStandardization(dtype="mixed_bfloat16")(images.astype("uint8"))
    np.testing.assert_allclose(outputs, expected, atol=1e-4)


def test_class_names_are_saved_and_logits_unchanged(tmp_path):
    logits = rng.normal(size=(5, 3)).astype("float32")
    check_layer(ClassNames(["cat", "dog", "Übersee"], dtype="mixed_bfloat16"), logits, expected=logits, atol=0)
    inputs = keras.Input((3,))
    model = keras.Model(inputs, ClassNames(("cat", "dog", "Übersee"), name="classes")(inputs))
    reloaded = check_saving(model, logits, tmp_path / "model.keras")
    assert reloaded.get_layer("classes").class_names == ("cat", "dog", "Übersee")
    with pytest.raises(ValueError, match="has 2 class names for 3 logits"):
        ClassNames(["a", "b"])(keras.Input((3,)))
