"""Layers of exported models: ZCA whitening against its definition, standardization against TensorFlow's, names."""

import keras
import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from idmatters_tf.layers import ClassNames, PerImageStandardization, ZCAWhitening
from tests.support.checks import check_layer, check_saving

rng = np.random.default_rng(1)


def correlated_images(n=400):
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(n, 48)) @ rng.normal(size=(48, 48))
    return np.clip(128 + 20 * mixed, 0, 255).astype("uint8").reshape(n, 4, 4, 3)


def test_zca_whitening_equals_its_definition(tmp_path):
    images = correlated_images()
    layer = ZCAWhitening()
    layer.adapt(images)
    rows = images.reshape(400, -1).astype(float)
    rows -= rows.mean(axis=1, keepdims=True)
    rows *= 55 / np.sqrt((rows**2).sum(axis=1, keepdims=True))
    covariance = np.cov(rows.T, bias=True) + 0.1 * np.eye(48)
    expected = (rows - rows.mean(axis=0)) @ np.real(scipy.linalg.fractional_matrix_power(covariance, -0.5))
    whitened = np.array(layer(images))
    np.testing.assert_allclose(whitened.reshape(400, -1), expected, atol=1e-3)
    # The outputs are white up to the bias, and nearer to the images than those of any other whitening.
    np.testing.assert_allclose(np.cov(whitened.reshape(400, -1).T, bias=True), np.eye(48), atol=0.05)

    inputs = keras.Input((4, 4, 3), dtype="uint8")
    reloaded = check_saving(keras.Model(inputs, layer(inputs)), images, tmp_path / "whitened.keras")
    np.testing.assert_allclose(reloaded.predict(images, verbose=0), whitened, atol=1e-4)
    assert not layer.trainable_variables
    # An image of one color.
    assert np.isfinite(np.array(layer(np.full((1, 4, 4, 3), 7, "uint8")))).all()
    with pytest.raises(ValueError, match="covariance of the images is singular .5 images of 48 values"):
        ZCAWhitening(filter_bias=0).adapt(np.zeros((5, 4, 4, 3)))


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
