"""The training on JAX in miniature, on a CPU."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")

# One block of two 3x3 convolutions on 4 channels behind a stem of 4.
NETWORK = ["--arguments", '{"blocks": 1, "widths": [4], "stem": 4}', "--batch-size", "16", "--dataset", "shapes"]


def train(out, *options, code=0):
    command = [sys.executable, "benchmarks/cifar_on_jax.py", *NETWORK, "--steps", "6", "--evaluate-every", "4"]
    command += ["--checkpoint-every", "3", "--out", str(out), *options]
    # Later runs of the same programs find them compiled.
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(out.parent / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    env = {**os.environ, **cache, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def weights(out):
    with np.load(out / "checkpoint.npz") as saved:
        return {name: saved[name] for name in saved.files if name not in ("seconds", "step")}


def test_a_run_that_was_cut_off_ends_as_one_that_was_not(tmp_path):
    whole, parts, loop = tmp_path / "whole", tmp_path / "parts", tmp_path / "loop"
    said = train(whole)
    assert "images/s" in said
    assert "after 6 steps" in said
    result = json.loads((whole / "result.json").read_text())
    # Operations of the stem and of the block's convolutions; the stem's inputs need no gradient.
    stem, block = (2 * 32 * 32 * 9 * size for size in (3 * 4, 2 * 4 * 4))
    assert result["operations_per_step"] == pytest.approx(16 * (2 * stem + 3 * block), rel=0.25)
    assert 0 < result["share_of_matrix_product_rate"] < 1
    kinds = [json.loads(line)["kind"] for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert (kinds.count("train"), kinds.count("test")) == (6, 2)

    assert "stopped at step 1" in train(parts, "--minutes", "0")
    train(parts)
    expected = weights(whole)
    for name, value in weights(parts).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
    assert "settings" in train(parts, "--seed", "1", code=2)

    train(loop, "--steps-per-dispatch", "3")
    for name, value in weights(loop).items():
        np.testing.assert_allclose(value, expected[name], atol=1e-5, err_msg=name)


def test_the_fast_preset_learns_and_goes_on_as_if_it_had_not_been_cut_off(tmp_path, more_faults):
    fast = [
        "--preset",
        "fast",
        "--batch-size",
        "32",
        "--arguments",
        '{"blocks": 1, "widths": [8, 8], "stem": 6, "last_kernel_size": 3, "whiten_stem": true}',
    ]
    fast += ["--steps", "30", "--warm-up-steps", "3", "--precision", "float32", "--evaluate-every", "30"]
    # So few steps have to be longer ones.
    fast += ["--learning-rate", "0.1", "--other-rate", "0.5", "--cutout", "8"]
    # Options that are not in the preset.
    fast += ["--average-weights", "0.5", "--mixup", "0.02", "--adaptive-clipping", "1"]
    train(tmp_path / "whole", *fast)
    losses = [json.loads(line)["loss"] for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert np.mean(losses[-6:-1]) < 0.98 * np.mean(losses[:3])
    saved = weights(tmp_path / "whole")
    trained = sum(name.startswith("0_") for name in saved)
    # The step, and for each weight its average and its velocity.
    assert sum(name.startswith("2_") for name in saved) == 2 * trained + 1
    stem = saved["1_0"].reshape(27, 6)
    np.testing.assert_array_equal(stem[:, :3], -stem[:, 3:])
    if not more_faults:
        return
    train(tmp_path / "parts", *fast, "--minutes", "0")
    train(tmp_path / "parts", *fast)
    expected = weights(tmp_path / "whole")
    for name, value in weights(tmp_path / "parts").items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_missing_data_are_said(tmp_path):
    assert "cifar10" in train(tmp_path / "run", "--dataset", "cifar10", "--data-dir", str(tmp_path), code=2)
