"""Tests of `trainers.depth` on small networks."""

import csv
import json

import numpy as np
import pytest

from idmatters_tf.isometry import find_blocks
from tests.support.programs import run_here
from trainers.depth.blocks import load


@pytest.mark.parametrize("block", ["batch-norm", "pre-norm"])
def test_table_figure_and_verdicts(tmp_path, block):
    options = ("--dataset", "shapes", "--depths", 1, 2, "--width", 4, "--seeds", 1, "--examples", 2, "--length", 2)
    result = run_here("trainers.depth", "--block", block, *options, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "depth.png").exists()
    rows = list(csv.DictReader((tmp_path / "depth.csv").read_text().splitlines()))
    assert [row["depth"] for row in rows] == ["1", "2"]
    assert all(np.isfinite(float(row[name])) for row in rows for name in ("sgd_rate", "distance_mean"))
    assert all(verdict in result.stdout for verdict in json.loads((tmp_path / "result.json").read_text())["verdicts"])


@pytest.mark.parametrize("block", ["near-identity", "standard", "zero-branch", "batch-norm", "pre-norm", "post-norm"])
def test_block_types(block):
    problem = load(block, 8, "shapes", None, False, 2, 3)
    model = problem.build(2)
    assert [block.name for block in find_blocks(model, problem.block_names(2))] == ["block1", "block2"]
    kernels = [v for v in model.get_layer("block1").trainable_variables if "kernel" in v.path]
    deviations = [float(np.std(kernel.numpy())) for kernel in kernels]
    if block == "zero-branch":
        assert deviations[1] == 0 < deviations[0]
    elif block in ("near-identity", "standard"):
        np.testing.assert_allclose(deviations, 1 / 72 if block == "near-identity" else 1 / (3 * 8**0.5), rtol=0.1)
    assert np.isfinite(np.asarray(problem.loss(problem.y, model(problem.x))))
