"""Fitted preprocessing that a run saves for its exports."""

import numpy as np
import pytest

from trainers.cli.arguments import UsageError
from trainers.datasets import preprocessing

IMAGES = np.random.default_rng(0).integers(0, 256, (20, 4, 4, 3), dtype=np.uint8)


def test_what_is_kept_computes_the_same(tmp_path):
    assert preprocessing.load(tmp_path) is None
    layer = preprocessing.fit("channels", IMAGES)
    preprocessing.save(layer, IMAGES.shape[1:], tmp_path)
    kept = preprocessing.load(tmp_path)
    np.testing.assert_array_equal(preprocessing.apply(kept, IMAGES), preprocessing.apply(layer, IMAGES))


def test_a_damaged_one_is_one_sentence(tmp_path):
    preprocessing.save(preprocessing.fit("channels", IMAGES), IMAGES.shape[1:], tmp_path)
    path = tmp_path / preprocessing.FILE
    for content in (b"garbage", path.read_bytes()[:-30], b""):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="preprocessing.keras is damaged"):
            preprocessing.load(tmp_path)


def test_pixels_subtracts_the_mean_image_and_keeps_proportions(tmp_path):
    preprocessing.save(preprocessing.fit("pixels", IMAGES), IMAGES.shape[1:], tmp_path)
    outputs = preprocessing.apply(preprocessing.load(tmp_path), IMAGES)
    expected = IMAGES - IMAGES.astype(float).mean(axis=0)
    np.testing.assert_allclose(outputs, expected / expected.std(), atol=1e-5)
