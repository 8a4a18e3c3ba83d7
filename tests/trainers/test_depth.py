"""Tests of `trainers.depth` on small networks."""

import csv
import json
import types
import typing

import keras
import numpy as np
import pytest

from idmatters_tf.isometry import find_blocks
from tests.support.programs import run_here
from trainers.cli.arguments import RunError
from trainers.depth import rates
from trainers.depth.__main__ import Block, ExampleSettings
from trainers.depth.blocks import load


def read(path):
    return list(csv.DictReader(path.read_text().splitlines()))


# The profile of each type takes 20 seconds or more; `test_block_types` checks all of them.
@pytest.mark.parametrize(
    "block", ["standard", *(pytest.param(n, marks=pytest.mark.slow) for n in ("batch-norm", "pre-norm"))]
)
def test_table_figure_and_verdicts(tmp_path, block):
    options = ["--dataset", "shapes", "--depths", 1, 2, "--width", 4, "--seeds", 1, "--examples", 2, "--length", 2]
    options += ["--rates", 3, "--steps", 60] if block == "standard" else []
    result = run_here("trainers.depth", "--block", block, *options, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "depth.png").exists()
    rows = read(tmp_path / "depth.csv")
    assert [row["depth"] for row in rows] == ["1", "2"]
    assert all(np.isfinite(float(row[name])) for row in rows for name in ("sgd_rate", "distance_mean"))
    assert all(verdict in result.stdout for verdict in json.loads((tmp_path / "result.json").read_text())["verdicts"])
    if block == "standard":
        first, second, third = (list(map(float, row.values())) for row in read(tmp_path / "rates.csv"))
        assert np.isnan(second[3:5]).all()
        assert f"depth 2 in place of 3, seed 0: largest stable rate {third[3]:.3g}," in result.stdout
        low, high = (float(row["sgd_rate"]) for row in rows)
        factor = np.sqrt(first[2] * second[2] / low / high)
        assert third[4] == pytest.approx(factor * high * (high / low) ** np.log2(3 / 2))
        assert (tmp_path / "rates.png").exists()


@pytest.mark.parametrize("options", ["--depths 2 2", "--width 6", "--depths 2 4 --rates 4"])
def test_wrong_depths_and_widths(options):
    result = run_here("trainers.depth", "--block", "standard", *options.split())
    assert result.returncode == 2
    assert "must" in result.stderr


def test_the_largest_stable_rate_of_a_quadratic_loss_is_2_over_lambda():
    x = np.tile([[1.0, 2.0]], (4, 1)).astype("float32")
    layers = [keras.Input((2,)), keras.layers.Dense(1, use_bias=False)]
    problem = types.SimpleNamespace(train_x=x, train_y=x[:, :1], loss="mse", build=lambda _: keras.Sequential(layers))
    runs = rates.ShortRuns(problem, 1, 200, 2)
    rate, start, end = runs.find([np.zeros((2, 1), "float32")], 3.0, 0)
    # lambda = 2 (1 + 4).
    assert rate == pytest.approx(0.2, rel=0.05)
    assert end < start == 1
    with pytest.raises(RunError, match="use more --steps"):
        rates.bisect(lambda rate: True, 1.0)


def test_one_branch_in_place_of_equal_ones():
    """From zero, the sum of branches with equal weights is one branch with factors of the learning rate."""
    x = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")

    def build(branches):
        inputs = keras.Input((3,), name="first")
        hidden = [keras.layers.Dense(5, "tanh", use_bias=False)(inputs) for _ in range(branches)]
        ends = [
            keras.layers.Dense(3, kernel_initializer="zeros", use_bias=False, name=f"{n}_end") for n in range(branches)
        ]
        parts = [end(part) for end, part in zip(ends, hidden, strict=True)]
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Add(name="second")([inputs, *parts])))

    def problem(branches):
        options = {"block_names": lambda _: {"block": ("first", "second")}, "build": lambda _: build(branches)}
        return types.SimpleNamespace(
            train_x=x, train_y=x[:, :1] ** 2, loss="mse", branch_ends=("_end/kernel",), **options
        )

    keras.utils.set_random_seed(0)
    one, four = rates.ShortRuns(problem(1), 1, 20, 8, target=4), rates.ShortRuns(problem(4), 1, 20, 8)
    weights = one.model.get_weights()
    expected = four.losses([*weights[:1] * 4, *weights[1:2] * 4, *weights[2:]], 0.03, 0)
    np.testing.assert_allclose(one.losses(weights, 0.03, 0), expected, rtol=1e-4)
    assert len(expected) == 20
    random = [weights[0], np.ones_like(weights[1]), *weights[2:]]
    one.losses(random, 0.0, 0)
    np.testing.assert_array_equal(one.model.get_weights()[1], 2 * random[1])


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
    if block not in ("convnext", "gated"):
        ends = rates.ShortRuns(problem, 2, 20, 2, target=8).ends
        assert len(ends) == {"batch-norm": 4, "pre-norm": 8, "post-norm": 8}.get(block, 2)
