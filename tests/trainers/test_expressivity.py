"""Tests of `trainers.expressivity`."""

import json

import keras
import numpy as np

import idmatters_tf.expressivity  # noqa: F401 - registers what the loaded model is made of
from idmatters_tf.data import shapes
from tests.support.programs import run_here


def test_the_exported_memorizer_is_exact(monkeypatch, tmp_path):
    images = shapes.load(train=150, test=50)
    monkeypatch.setattr(shapes, "load", lambda *_: images)
    out = tmp_path / "run"
    options = ("--train-images", 120, "--labels", "random", "--width", 16)
    result = run_here("trainers.expressivity", *options, "--out", out, code=0)
    assert "100.00 % of 120 rows" in result.stdout
    numbers = json.loads((out / "result.json").read_text())
    assert (numbers["loaded"]["correct"], numbers["blocks"]) == (120, 8)
    assert numbers["loaded"]["largest_error"] < 1e-6
    # Random labels do not generalize.
    assert numbers["test"]["accuracy"] < 0.2
    model = keras.saving.load_model(out / "model.keras")
    assert model.count_params() == numbers["parameters"]
    labels = np.random.default_rng(0).integers(0, 10, 120)
    x = images.train_images[:120].reshape(120, -1).astype(float)
    np.testing.assert_allclose(model(x), np.eye(10)[labels], atol=1e-6)

    rejected = run_here("trainers.expressivity", "--order", "paper", "--out", out, code=2)
    assert "argument --order: expected one of norm, ridge" in rejected.stderr
