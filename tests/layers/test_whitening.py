"""Whitening first layers: the outputs are white."""

import numpy as np
import pytest

from idmatters_tf.layers import PatchWhitening2D
from idmatters_tf.models.normalizer_free import normalizer_free_resnet
from tests.support.checks import check_layer, check_saving

rng = np.random.default_rng(0)


def smooth_images():
    """Return images with correlated adjacent pixels and channels, and a mean other than 0."""
    noise = rng.normal(size=(40, 14, 12, 3)) @ rng.normal(size=(3, 3))
    return (noise + np.roll(noise, 1, axis=1) + 2 * np.roll(noise, 1, axis=2) + 0.7).astype("float32")


@pytest.mark.parametrize(("size", "filters"), [(2, 10), (3, 54)])
def test_outputs_are_uncorrelated_and_of_variance_one(size, filters):
    images = smooth_images()
    layer = PatchWhitening2D(filters, size, epsilon=1e-9, name="whitening")
    layer.adapt(images)
    outputs = np.array(layer(images)).reshape(-1, filters)
    first, second = np.split(outputs, 2, axis=1)
    np.testing.assert_allclose(second, -first, atol=1e-4)
    np.testing.assert_allclose(np.cov(first.T), np.eye(filters // 2), atol=1e-3)
    # Fewer filters are the directions of largest variance, which need the least amplification.
    norms = np.linalg.norm(np.array(layer.kernel).reshape(-1, filters)[:, : filters // 2], axis=0)
    assert (np.diff(norms) >= 0).all()
    if size == 2:
        check_layer(layer, images)
    first = PatchWhitening2D(filters, size, epsilon=1e-9, data_format="channels_first")
    first.adapt(np.moveaxis(images, 3, 1))
    np.testing.assert_array_equal(first.kernel, layer.kernel)


def test_kernel_stays_frozen_and_is_saved(tmp_path):
    model = normalizer_free_resnet((14, 12, 3), blocks=1, widths=(12,), stem=12, stem_size=2, whiten_stem=True)
    stem, images = model.get_layer("stem"), smooth_images()
    stem.adapt(images)
    # Fine-tuning freezes the layers and unfreezes them again.
    for trainable in (True, False, True):
        model.trainable = stem.trainable = trainable
        paths = ["stem/bias"] if trainable else []
        assert [variable.path for variable in stem.trainable_variables] == paths
        assert [variable.path for variable in model.trainable_variables if "stem" in variable.path] == paths
    again = check_saving(model, images, tmp_path / "model.keras")
    np.testing.assert_array_equal(again.get_layer("stem").kernel, stem.kernel)


def test_odd_and_too_many_filters_raise():
    for filters in (7, 26):
        with pytest.raises(ValueError, match="`filters` must be even and at most 24"):
            PatchWhitening2D(filters, 2).build((None, 8, 8, 3))
