"""Fitted preprocessing that a run saves for its exports."""

import dataclasses

import keras
import numpy as np
import pytest

from idmatters_tf.data import shapes
from tests.support.programs import run_here
from tests.trainers.conftest import TINY
from trainers import preprocessing
from trainers.cli.arguments import UsageError
from trainers.datasets import Shapes

IMAGES = np.random.default_rng(0).integers(0, 256, (20, 4, 4, 3), dtype=np.uint8)


def test_a_damaged_preprocessing_raises_a_usage_error(tmp_path):
    preprocessing.save(preprocessing.fit("channels", IMAGES), IMAGES.shape[1:], tmp_path)
    path = tmp_path / preprocessing.FILE
    for content in (b"garbage", path.read_bytes()[:-30], b""):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="preprocessing.keras is damaged"):
            preprocessing.load(tmp_path)


def test_the_training_command_fits_a_missing_preprocessing_again(tmp_path, monkeypatch, without_saved_model):
    """Test that an export never replaces a fitted layer silently by the default one, or by that of other data."""
    run = tmp_path / "run"
    images = shapes.load(64, 48).test_images
    train = ("trainers.cifar", *TINY.split(), "--steps", 2, "--preprocess", "channels", "--out", run)
    run_here(*train, code=0)
    logits = keras.saving.load_model(run / "model.keras")(images)
    (run / "preprocessing.keras").unlink()
    refused = run_here("trainers.cifar", "--export-only", run, code=2)
    assert f"{run / 'preprocessing.keras'} is missing. Remove {run / 'result.json'} and repeat" in refused.stderr
    (run / "result.json").unlink()
    (run / "model.keras").unlink()
    run_here(*train, code=0)
    np.testing.assert_array_equal(keras.saving.load_model(run / "model.keras")(images), logits)
    fitted = (run / "preprocessing.keras").read_bytes()
    (run / "result.json").unlink()
    data = shapes.load(64, 48)
    other = dataclasses.replace(data, train_images=255 - data.train_images)
    monkeypatch.setattr(Shapes, "load", lambda self: other)
    assert run_here(*train).returncode == 2
    assert (run / "preprocessing.keras").read_bytes() == fitted


@pytest.mark.parametrize(("kind", "means", "deviations"), [("pixels", 0, None), ("channels", (0, 1, 2), (0, 1, 2))])
def test_means_and_deviations_of_all_images(kind, means, deviations, tmp_path):
    """Subtract the mean image, and divide by one deviation, or do both for each channel."""
    preprocessing.save(preprocessing.fit(kind, IMAGES), IMAGES.shape[1:], tmp_path)
    outputs = preprocessing.apply(preprocessing.load(tmp_path), IMAGES)
    expected = IMAGES - IMAGES.mean(axis=means)
    np.testing.assert_allclose(outputs, expected / expected.std(axis=deviations), atol=1e-3)
