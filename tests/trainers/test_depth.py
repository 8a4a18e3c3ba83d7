"""Tests of `trainers.depth` on small networks."""

import csv
import importlib.util
import json
import typing

import numpy as np
import pytest

from idmatters_tf.isometry import find_blocks
from tests.support.programs import run_here
from trainers.depth.__main__ import Block, ExampleSettings
from trainers.depth.blocks import load
from trainers.depth.scaling import summarize, summarize_curves


def read(path):
    return list(csv.DictReader(path.read_text().splitlines()))


# The profile of each type takes 20 seconds or more; `test_block_types` checks all of them.
@pytest.mark.parametrize(
    "block", ["standard", *(pytest.param(n, marks=pytest.mark.slow) for n in ("batch-norm", "pre-norm"))]
)
def test_table_figure_and_verdicts(tmp_path, block):
    options = ["--dataset", "shapes", "--depths", 1, 2, "--width", 4, "--seeds", 1, "--examples", 2, "--length", 2]
    result = run_here("trainers.depth", "--block", block, *options, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "depth.png").exists()
    rows = read(tmp_path / "depth.csv")
    assert [row["depth"] for row in rows] == ["1", "2"]
    assert all(np.isfinite(float(row[name])) for row in rows for name in ("sgd_rate", "distance_mean"))
    assert all(verdict in result.stdout for verdict in json.loads((tmp_path / "result.json").read_text())["verdicts"])


def test_rates_of_short_trainings(tmp_path):
    options = [
        "--dataset",
        "shapes",
        "--measure",
        "rates",
        "--depths",
        "1",
        "2",
        "--width",
        "4",
        "--seeds",
        "1",
        "--steps",
        "10",
        "--optimizer",
        "muon",
    ]
    result = run_here("trainers.depth", "--block", "near-identity", *options, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    rows = read(tmp_path / "rates.csv")
    assert {row["depth"] for row in rows} == {"1", "2"}
    assert all(float(row["first_loss"]) > 0 for row in rows)
    assert (tmp_path / "rates.png").exists()
    assert not (tmp_path / "depth.csv").exists()


def test_summary_of_a_measurement_of_scale_depth():
    losses = {(1, "unscaled"): [3.0, 2.0, 2.5], (4, "unscaled"): [2.5, 2.6, np.inf], (4, "alpha 1"): [2.3, 1.9, 1.91]}
    rows = [
        {"depth": depth, "scale": scale, "rate": rate, "seed": 0, "first_loss": 4.0, "loss": loss}
        for (depth, scale), values in losses.items()
        for rate, loss in zip((0.1, 0.2, 0.4), values, strict=True)
    ]
    numbers = summarize(rows, 1)
    assert numbers["depth 1"] == {"rate": 0.2, "loss": 2.0}
    own = {"loss": 2.6, "lowest": 2.5, "best_rate": 0.1, "ratio": 0.5, "transfers": False, "not_worse": False}
    assert numbers["depth 4, unscaled"] == own
    assert numbers["depth 4, alpha 1"]["transfers"]
    assert numbers["depth 4, alpha 1"]["not_worse"]


def test_summary_of_curves_is_the_mean_of_the_last_tenth():
    rows = [
        {"depth": depth, "scale": "unscaled", "seed": 0, "rate": 0.1, "step": 20 * n, "loss": depth + n}
        for depth in (4, 16)
        for n in range(1, 21)
    ]
    assert summarize_curves(rows) == {"rate": 0.1, "depth 4, unscaled": 23.5, "depth 16, unscaled": 35.5}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_stacked_blocks_train_as_keras_models(program):
    env = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = program("tests.support.stacked_depth", env=env, timeout=900)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-5


@pytest.mark.parametrize("options", ["--depths 2 2", "--width 6", "--depths 4", "--measure scaling --dataset shapes"])
def test_wrong_depths_and_widths(options):
    result = run_here("trainers.depth", "--block", "standard", *options.split())
    assert result.returncode == 2
    assert "must" in result.stderr or "on JAX" in result.stderr


@pytest.mark.parametrize("block", typing.get_args(Block))
def test_block_types(block):
    problem = load(block, 8, ExampleSettings("shapes"), 2, 3)
    model = problem.build(2)
    assert [block.name for block in find_blocks(model, problem.block_names(2))] == ["block1", "block2"]
    kernels = [v for v in model.get_layer("block1").trainable_variables if "kernel" in v.path]
    deviations = [float(np.std(kernel.numpy())) for kernel in kernels]
    if block == "zero-branch":
        assert deviations[1] == 0 < deviations[0]
    elif block in ("near-identity", "standard"):
        np.testing.assert_allclose(deviations, 1 / 72 if block == "near-identity" else 1 / (3 * 8**0.5), rtol=0.1)
    assert np.isfinite(np.asarray(problem.loss(problem.y, model(problem.x))))
