"""Tests of `--preset fast` at a small size: learning and bitwise resuming."""

import pytest

from tests.support.processes import assert_same_run, cut_back, records, run_forked
from tests.support.programs import run_here

SMALL = ["--preset", "fast", "--dataset", "shapes", "--train-images", 300, "--held-out", 60, "--blocks", 1]
SMALL += ["--stem", 8, "--batch-size", 32, "--steps", 60, "--warm-up-steps", 6]
SMALL += ["--log-every", 5, "--evaluate-every", 60, "--checkpoint-every", 30, "--cutout", 4]
# A small number of steps requires a larger learning rate.
SMALL += ["--learning-rate", 0.1, "--other-rate", 0.5]
# Options outside the preset.
MORE = ["--widths", 16, 16, "--train-images", 600, "--held-out", 100, "--batch-size", 50]


def trained_and_resumed(folder, *options):
    """Train a run, resume a copy from its middle, and compare both. Return the output and the training records."""
    whole = run_here("trainers.cifar", *options, "--out", folder / "whole")
    assert whole.returncode == 0, whole.stderr
    step = cut_back(folder / "whole", folder / "resumed")
    done = run_forked("trainers.cifar", *options, "--out", folder / "resumed")
    assert done.returncode == 0, done.stderr
    assert f"resuming from step {step}" in done.stderr
    assert_same_run(folder / "whole", folder / "resumed")
    return whole.stderr, [record for record in records(folder / "whole") if record["kind"] == "train"]


def test_the_fast_preset_learns_and_resumes_bit_for_bit(tmp_path):
    said, train = trained_and_resumed(tmp_path, *SMALL, *MORE)
    assert "500 + 100 images" in said
    assert train[-1]["loss"] < 0.9 * train[0]["loss"]
    assert max(record["learning_rate"] for record in train) <= 0.1
    assert train[-1]["learning_rate"] < 0.01


# The size changes after the checkpoint from which the run is resumed.
FREE = ["--optimizer", "muon-free", "--weight-decay", 0.01, "--schedule", "airbench"]
FREE += ["--widths", 16, "--train-sizes", "16:40", "--model", "identity"]


# tests/trainers/test_jax.py resumes the preset "short", with the same options.
@pytest.mark.slow
def test_free_norms_lookahead_and_sizes_resume_bit_for_bit(tmp_path):
    _, train = trained_and_resumed(tmp_path, *SMALL, *FREE, "--learning-rate", 0.2)
    assert train[-1]["loss"] < 0.95 * train[0]["loss"]
    assert train[-1]["learning_rate"] == pytest.approx(0.2 * (0.07 + 0.93 / 54), rel=1e-5)
