"""Tests of `trainers.expressivity` and of the example that memorizes data."""

import json

import keras
import numpy as np
import pytest

import idmatters_tf.expressivity  # noqa: F401 - registers what the loaded model is made of
from idmatters_tf.data import shapes
from tests.conftest import ROOT
from tests.support.programs import run_here, run_in_process, run_script
from trainers.expressivity.__main__ import main


def test_everything_is_written_and_the_loaded_model_is_exact(monkeypatch, tmp_path):
    images = shapes.load(train=150, test=50)
    monkeypatch.setattr(shapes, "load", lambda: images)
    out = tmp_path / "run"
    options = ("--train-images", 120, "--labels", "random", "--width", 16)
    result = run_here("trainers.expressivity", *options, "--out", out)
    assert result.returncode == 0, result.stderr
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

    again = run_here("trainers.expressivity", *options, "--out", out)
    assert (again.returncode, "is finished" in again.stdout) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--width", "0"], 2, "argument --width: expected a whole number of at least 1"),
        (["--dataset", "mnist", "--no-download", "--data-dir", "{}"], 2, "mnist was not found"),
        (["--order", "paper"], 2, "argument --order: expected one of norm, ridge"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, arguments, code, message):
    arguments = [argument.format(tmp_path) for argument in arguments]
    ended, stderr = run_in_process(main, *arguments, "--out", tmp_path / "run")
    assert ended == code, stderr
    assert message in stderr
    assert "Traceback" not in stderr


def test_the_example_takes_a_csv_file_and_arrays(tmp_path):
    table = tmp_path / "table.csv"
    rows = [f"{'ab'[i % 2]},{i / 7:.3f},{('red', 'blue', 'green')[i % 3]}" for i in range(40)]
    table.write_text("\n".join(["kind,length,colour", *rows]))
    np.savez(tmp_path / "arrays.npz", x=np.random.default_rng(0).random((30, 5)), labels=np.arange(30) % 3)
    script, out = ROOT / "examples" / "memorize_your_data.py", tmp_path / "m.keras"
    output = run_script(script, "--out", out, "--csv", table, "--label", "kind")
    assert "40 of 40 rows right" in output
    assert "column colour: text with 3 categories, one-hot encoded" in output
    assert "30 of 30 rows right" in run_script(script, "--out", out, "--npz", tmp_path / "arrays.npz")
