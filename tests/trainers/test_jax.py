"""Training programs on JAX, with and without TensorFlow."""

import importlib.util
import json

import keras
import numpy as np
import pytest

import idmatters_tf.layers  # noqa: F401 - registers the layers
from tests.support.programs import run_here

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")

TINY = ["--dataset", "shapes", "--train-images", 96, "--test-images", 20, "--blocks", 1, "--stem", 4, "--widths", 4]
TINY += ["--batch-size", 16, "--log-every", 4, "--evaluate-every", 8, "--checkpoint-every", 12, "--steps", 12]
JAX = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}


@pytest.mark.parametrize(
    "options",
    [
        ["--preset", "quick", "--preprocess", "channels", "--without-tensorflow", *TINY],
        pytest.param(
            ["--preset", "short", "--warm-up-steps", 2, "--train-sizes", "20:6", *TINY], marks=pytest.mark.slow
        ),
    ],
    ids=["quick without TensorFlow", "short"],
)
def test_a_stopped_run_on_jax_ends_with_the_same_bits(options, program, tmp_path):
    done = program("tests.trainers.jax_runs", tmp_path, 7, *options, env=JAX)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results["codes"] == [128 + 15, 0, 0, 0]
    assert results["stopped at"] == 7
    assert results["digests"][0] == results["digests"][1]
    run = tmp_path / "stopped"
    last = json.loads((run / "result.json").read_text())["last_error"]
    assert f"step 12: test error {100 * last:.2f} %" in results["evaluated"]
    model = keras.saving.load_model(run / "model.keras")
    assert np.shape(model(np.zeros((2, *model.input_shape[1:]), np.uint8))) == (2, model.output_shape[-1])
    has_tensorflow = "--without-tensorflow" not in options
    assert [(run / name).is_dir() for name in ("saved_model", "events")] == [False, has_tensorflow]
    if has_tensorflow:
        # In this process, on TensorFlow.
        run_here("trainers.cifar", "--export-only", run, code=0)
        assert (run / "saved_model").is_dir()
