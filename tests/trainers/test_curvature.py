"""The Hessian measured during training, and Figure 2 from the runs' logs."""

import json

import pytest

from tests.support.programs import run_here

SMALL = ("--dataset", "shapes", "--blocks", 1, "--widths", 4, 8, "--stem", 4, "--train-images", 60, "--test-images", 20)
SMALL += (
    "--batch-size",
    20,
    "--steps",
    4,
    "--drop-steps",
    "--learning-rate",
    0.1,
    "--evaluate-every",
    2,
    "--log-every",
    1,
)


def records(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run with measurements, made once."""
    import os
    import subprocess
    import sys

    from tests.conftest import ROOT

    out = tmp_path_factory.mktemp("runs") / "watched"
    options = ("--curvature-every", 2, "--curvature-examples", 21, "--out", out)
    command = [sys.executable, "-m", "trainers.cifar", *map(str, (*SMALL, *options))]
    result = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    assert "uses a while_loop" not in result.stderr
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
    for record in measured:
        assert record["smallest_eigenvalue_1"] <= record["smallest_eigenvalue_2"] < record["largest_eigenvalue_1"]
        assert 0 <= record["index"] <= 1
        assert record["gradient_norm"] > 0


def test_bfloat16_is_refused(tmp_path):
    result = run_here(
        "trainers.cifar", *SMALL, "--curvature-every", 2, "--precision", "bfloat16", "--out", tmp_path / "run"
    )
    assert result.returncode == 2
    assert "--curvature-every needs --precision float32" in result.stderr


def test_figure_2_from_a_run(watched, tmp_path):
    result = run_here("trainers.shortcuts", "norms", "--runs", watched, "--out", tmp_path / "figure")
    assert result.returncode == 0, result.stderr
    assert "shapes, 5 convolutions: mean Frobenius norm" in result.stdout
    assert (tmp_path / "figure" / "training-norms.png").is_file()
    lines = (tmp_path / "figure" / "training-norms.csv").read_text().splitlines()
    assert len(lines) == 3
