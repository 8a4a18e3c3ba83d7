"""The benchmark of the transfer of rates by `scale_depth`, on small networks."""

import importlib.util

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


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_stacked_blocks_train_as_keras_models(program):
    env = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = program("tests.depth.stacked_depth", env=env, timeout=900)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-5
