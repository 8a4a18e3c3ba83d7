"""ZCA whitening against its definition."""

import keras
import numpy as np
import pytest
import scipy.linalg

from idmatters_tf.layers import ZCAWhitening
from tests.support.checks import check_saving


def correlated_images(n=400):
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(n, 48)) @ rng.normal(size=(48, 48))
    return np.clip(128 + 20 * mixed, 0, 255).astype("uint8").reshape(n, 4, 4, 3)


def test_it_is_the_definition(tmp_path):
    images = correlated_images()
    layer = ZCAWhitening()
    layer.adapt(images)
    rows = images.reshape(400, -1).astype(float)
    rows -= rows.mean(axis=1, keepdims=True)
    rows *= 55 / np.sqrt((rows**2).sum(axis=1, keepdims=True))
    covariance = np.cov(rows.T, bias=True) + 0.1 * np.eye(48)
    expected = (rows - rows.mean(axis=0)) @ np.real(scipy.linalg.fractional_matrix_power(covariance, -0.5))
    found = np.array(layer(images))
    np.testing.assert_allclose(found.reshape(400, -1), expected, atol=1e-3)
    # The outputs are white up to the bias, and nearer to the images than those of any other whitening.
    np.testing.assert_allclose(np.cov(found.reshape(400, -1).T, bias=True), np.eye(48), atol=0.05)

    inputs = keras.Input((4, 4, 3), dtype="uint8")
    reloaded = check_saving(keras.Model(inputs, layer(inputs)), images, tmp_path / "whitened.keras")
    np.testing.assert_allclose(reloaded.predict(images, verbose=0), found, atol=1e-4)
    assert not layer.trainable_variables
    # An image of one color.
    assert np.isfinite(np.array(layer(np.full((1, 4, 4, 3), 7, "uint8")))).all()


def test_bad_arguments():
    with pytest.raises(ValueError, match="`scale` must be positive"):
        ZCAWhitening(scale=0)
    with pytest.raises(ValueError, match="known size"):
        ZCAWhitening()(keras.Input((None, 4, 3)))
    with pytest.raises(ValueError, match="covariance of the images is singular .5 images of 48 values"):
        ZCAWhitening(filter_bias=0).adapt(np.zeros((5, 4, 4, 3)))
