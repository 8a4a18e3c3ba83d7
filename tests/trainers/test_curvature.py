"""Tests of the measurement of the Hessian during training, and of Figure 2 from the logs of runs."""

from typing import Any

import keras
import numpy as np
import pytest

from idmatters_tf.curvature import HessianOperator
from idmatters_tf.data import shapes
from tests.support.processes import records, run_forked
from tests.support.programs import run_here

SMALL = ["--dataset", "shapes", "--blocks", 1, "--widths", 2, "--stem", 2, "--train-images", 60, "--test-images", 20]
SMALL += ["--batch-size", 20, "--steps", 4, "--drop-steps", 3, "--learning-rate", 0.1, "--evaluate-every", 2]
SMALL += ["--log-every", 1, "--precision", "bfloat16"]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Return a run in bfloat16 with measurements."""
    out = tmp_path_factory.mktemp("runs") / "watched"
    options = ("--curvature-every", 2, "--out", out)
    result = run_forked("trainers.cifar", *SMALL, *options)
    assert result.returncode == 0, result.stderr
    return out


def test_measurements_do_not_change_the_training(watched, tmp_path):
    plain = tmp_path / "plain"
    assert run_here("trainers.cifar", *SMALL, "--out", plain).returncode == 0
    kinds = {"train", "test"}
    losses = [
        [(record["step"], record["loss"]) for record in records(path) if record["kind"] in kinds]
        for path in (watched, plain)
    ]
    assert losses[0] == losses[1]
    measured = [record for record in records(watched) if record["kind"] == "curvature"]
    assert [record["step"] for record in measured] == [2, 4]
    # Heavy-ball momentum of 0.9; the rate decreases from 0.1 to 0.01 before the last update.
    rates = {record["step"]: record["learning_rate"] for record in records(watched) if record["kind"] == "train"}
    assert [rates[2], rates[4]] == pytest.approx([0.1, 0.01])
    for record in measured:
        assert record["stability_threshold"] == pytest.approx(2 * 1.9 / rates[record["step"]], rel=1e-6)
        assert record["smallest_eigenvalue_1"] <= record["smallest_eigenvalue_2"] < record["largest_eigenvalue_1"]
        assert 0 <= record["index"] <= 1
        assert record["gradient_norm"] > 0


@pytest.mark.slow
def test_a_training_in_bfloat16_is_measured_in_float32(watched):
    last = [record for record in records(watched) if record["kind"] == "curvature"][-1]
    # Exported in float32, including the standardization.
    model: Any = keras.saving.load_model(watched / "model.keras")
    data = shapes.load(train=60, test=20)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    operator = HessianOperator(model, loss, (data.train_images, data.train_labels), check=False)
    largest = np.linalg.eigvalsh(operator.to_dense())[-1]
    assert last["largest_eigenvalue_1"] == pytest.approx(largest, rel=1e-2)
    assert last["gradient_norm"] == pytest.approx(np.linalg.norm(operator.gradient()), rel=1e-4)
