"""The benchmark of the transfer of rates by `scale_depth`, on small networks."""

import importlib.util
import json
import sys

import numpy as np
import pytest

from tests.conftest import ROOT


@pytest.fixture
def transfer(monkeypatch):
    """Return the module of the benchmark, which selects JAX for a process of its own."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    import depth_transfer

    return depth_transfer


def test_summary(transfer):
    losses = {(1, "unscaled"): [3.0, 2.0, 2.5], (4, "unscaled"): [2.5, 2.6, np.inf], (4, "alpha 1"): [2.3, 1.9, 1.91]}
    rows = [
        {"depth": depth, "scale": scale, "rate": rate, "seed": 0, "first_loss": 4.0, "loss": loss}
        for (depth, scale), values in losses.items()
        for rate, loss in zip((0.1, 0.2, 0.4), values, strict=True)
    ]
    numbers = transfer.summarize(rows, 1)
    assert numbers["depth 1"] == {"rate": 0.2, "loss": 2.0, "first_loss": 4.0}
    own = {"loss": 2.6, "lowest": 2.5, "best_rate": 0.1, "ratio": 0.5, "transfers": False, "not_worse": False}
    assert numbers["depth 4, unscaled"] == own
    assert numbers["depth 4, alpha 1"]["transfers"]
    assert numbers["depth 4, alpha 1"]["not_worse"]


def test_summary_of_curves_is_the_mean_of_the_last_tenth(transfer):
    rows = [
        {"depth": depth, "scale": "unscaled", "seed": 0, "rate": 0.1, "step": 20 * n, "loss": depth + n}
        for depth in (4, 16)
        for n in range(1, 21)
    ]
    assert transfer.summarize_curves(rows) == {"rate": 0.1, "depth 4, unscaled": 23.5, "depth 16, unscaled": 35.5}


def test_pages_are_rewritten(transfer, tmp_path):
    """The rows of the pages as they are, from their numbers."""
    tables = sys.modules["harness.depth_tables"]
    own = {"loss": 2.396, "lowest": 2.396, "transfers": True, "not_worse": False}
    numbers = {
        "depth 4": {"rate": 0.04, "first_loss": 2.41, "loss": 2.386},
        "depth 32, alpha 1": own,
        "depth 32, alpha 1/2": {**own, "loss": 2.438, "lowest": 2.304, "transfers": False},
        "depth 32, unscaled": {**own, "loss": 2.339, "lowest": 2.339, "not_worse": True},
        "depth 32, square root": {"loss": 2.383, "transfers": False, "not_worse": True},
        "depth 64, alpha 1": {**own, "loss": 2.395},
        "depth 64, unscaled": {**own, "loss": 2.318},
    }
    settings = {"block": "near-identity", "optimizer": "momentum", "measure": "scaling"}
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "result.json").write_text(json.dumps({"settings": settings, "numbers": numbers, "rows": []}))
    pages = {name: (tables.RESULTS / f"{name}.md").read_text() for name in ("depth", "depth_cases")}
    for name, text in pages.items():
        assert tables.BEGIN in text
        (tmp_path / f"{name}.md").write_text(text)
    tables.write_pages(tmp_path, tmp_path)
    written = {name: (tmp_path / f"{name}.md").read_text() for name in pages}
    (row,) = [line for line in written["depth_cases"].splitlines() if line.startswith("| near-identity")]
    assert row in pages["depth_cases"].splitlines()
    counts = [line for line in written["depth"].splitlines() if " of 1 |" in line]
    assert [line.count("1 of 1") for line in counts] == [2, 2]
    for name, text in pages.items():
        assert written[name].partition(tables.BEGIN)[0] == text.partition(tables.BEGIN)[0]
        assert written[name].partition(tables.END)[2] == text.partition(tables.END)[2]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_stacked_blocks_train_as_keras_models(program):
    env = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = program("tests.support.stacked_depth", env=env, timeout=900)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-5


@pytest.mark.parametrize(
    "block", ["near-identity", "standard", "pre-activation", "convnext", "pre-norm", "gated", "mixer"]
)
def test_block_types(transfer, block):
    problem = sys.modules["harness.blocks"].load(block, 8, 3, 4)
    model = problem.build(2)
    names = [layer.name for layer in model.layers]
    assert {"block0", "block1", "block2"} <= set(names)
    kernels = [v for v in model.get_layer("block1").trainable_variables if "kernel" in v.path]
    if block in ("near-identity", "standard"):
        deviations = [float(np.std(kernel.numpy())) for kernel in kernels]
        np.testing.assert_allclose(deviations, 1 / 72 if block == "near-identity" else 1 / (3 * 8**0.5), rtol=0.1)
    assert np.isfinite(np.asarray(problem.loss(problem.train_y, model(problem.train_x))))


def test_correlations_over_the_depth(transfer):
    correlations = transfer.depth_correlations("smooth", 5, 0.3)
    root = transfer.square_root(correlations)
    np.testing.assert_allclose((root @ root.T)[0], correlations, atol=1e-12)
    np.testing.assert_allclose(np.diag(root @ root.T), 1)
    np.testing.assert_array_equal(transfer.square_root(transfer.depth_correlations("independent", 3)), np.eye(3))
