"""Tests of sweeps over seeds and options."""

import json
import shlex
import signal
import sys
import time

import pytest

from idmatters_tf._environment import cores
from tests.support.processes import reached, start
from trainers import cifar
from trainers.cifar import Cifar
from trainers.cli.arguments import UsageError
from trainers.cli.settings import as_dict, parse
from trainers.sweep import Settings, divide_cores, list_runs, main
from trainers.training.program import split


def test_a_run_for_each_seed_and_combination():
    vary = ("initializer=identity,standard", "widths=16 32,32 64", "nesterov=true,false")
    runs = list_runs("cifar", ["--preset", "quick"], Settings(seeds=(3, 5), vary=vary, out="runs/s"))
    assert len(runs) == 16
    assert shlex.join(runs["initializer-standard-widths-16-32-nesterov-true-seed-5"]) == (
        "--preset quick --initializer standard --widths 16 32 --nesterov --seed 5 "
        "--out runs/s/initializer-standard-widths-16-32-nesterov-true-seed-5"
    )
    assert "--nesterov" not in runs["initializer-identity-widths-32-64-nesterov-false-seed-3"]


def test_invalid_sweeps_are_rejected_before_the_first_run():
    for vary, arguments, message in (
        ("initialiser=identity", "", r"there is no option --initialiser\. Did you mean --initializer\?"),
        ("xyzzy=1,2", "", r"there is no option --xyzzy\.$"),
        ("initializer", "", "expected OPTION=VALUE,VALUE"),
        ("initializer=identity,identity", "", "all different"),
        ("seed=1,2", "", "pass the seeds as --seeds"),
        ("nesterov=yes,no", "", "is a flag: its values are true and false"),
        ("clip-norm=1,2", "--clip-norm 3", "--clip-norm is given twice"),
        ("widths=64 32,32 64", "", "must not decrease"),
        ("batch_siz=1,2", "", r"there is no option --batch_siz\. Did you mean --batch-size\?"),
        (None, "--out x", "--out must not be among the options after --"),
        (None, "--seed 1", "--seed must not be among"),
    ):
        with pytest.raises(UsageError, match=message):
            list_runs("cifar", arguments.split(), Settings(vary=(vary,) if vary else ()))
    with pytest.raises(UsageError, match="--seeds must all be different"):
        Settings(seeds=(1, 1))


def finished_run(folder, words, error):
    """Create the folder of a finished run with these options."""
    _, typed = split(Cifar, parse(cifar.parser(), words))
    folder.mkdir()
    config = {"program": "trainers.cifar", "settings": as_dict(Cifar.resolve({}, typed)), "data": {}}
    (folder / "config.json").write_text(json.dumps(config))
    record = {"kind": "test", "step": 10, "seconds": 60.0, "loss": 1.0, "error": error}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    numbers = {"steps": 60_000, "best_error": error, "best_step": 10, "last_error": error, "parameters": 7}
    (folder / "result.json").write_text(json.dumps({**numbers, "seconds": 60.0}))


def test_a_sweep_starts_its_runs_and_reports(tmp_path, capfd, monkeypatch):
    words = ["--seeds", "7", "8", "--out", str(tmp_path), "--", "cifar", "--dataset", "shapes"]
    assert main(["--dry-run", *words]) == 0
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().out.count("python -m trainers.cifar --dataset shapes --seed") == 2
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["/usr/bin/idmatters-sweep"])
        assert main(["--dry-run", *words]) == 0
    assert capfd.readouterr().out.count("idmatters-cifar --dataset shapes --seed") == 2
    for seed in (7, 8):
        finished_run(tmp_path / f"seed-{seed}", ["--dataset", "shapes", "--seed", str(seed)], seed / 100)
    assert main(["--format", "pdf", "--jobs", "1000", *words]) == 0
    assert (tmp_path / "report" / "comparison.pdf").read_bytes().startswith(b"%PDF")
    said, complaint = capfd.readouterr()
    assert f"--jobs 1000: reduced to {cores()}, the number of cores" in complaint
    assert "[seed-8] " in said
    assert said.count("is finished. test error: best") == 2
    assert "7.50 ± 0.71" in (tmp_path / "report" / "comparison.md").read_text()
    # A usage error of one run is a usage error of the sweep.
    (tmp_path / "seed-8" / "config.json").unlink()
    assert main(words) == 2
    assert "contains something other than a run" in capfd.readouterr().out


def test_each_job_has_its_own_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {9, 2, 3, 4, 7}, raising=False)
    assert divide_cores(1) == [None]
    assert divide_cores(2) == [[2, 3], [4, 7, 9]]
    assert divide_cores(5) == [[2], [3], [4], [7], [9]]


@pytest.fixture
def sweep(tmp_path):
    """Yield the process of a sweep of three runs, two at a time, that outlast every test."""
    words = ["--jobs", 2, "--seeds", 0, 1, 2, "--out", tmp_path, "--", "cifar", "--dataset", "shapes"]
    words += ["--blocks", 1, "--stem", 2, "--widths", 2, 4, "--batch-size", 8, "--train-images", 64]
    words += ["--test-images", 16, "--learning-rate", 1e-6, "--steps", 1_000_000, "--log-every", 1]
    words += ["--evaluate-every", 1_000_000]
    process = start("trainers.sweep", *words)
    yield process
    process.kill()
    process.communicate(timeout=60)


@pytest.mark.slow
@pytest.mark.skipif(cores() < 2, reason="needs two cores")
def test_runs_in_progress_are_stopped_together(sweep, tmp_path):
    deadline = time.monotonic() + 120
    while min(reached(tmp_path / f"seed-{seed}") for seed in (0, 1)) < 2:
        assert sweep.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    sweep.send_signal(signal.SIGTERM)
    output, _ = sweep.communicate(timeout=60)
    assert sweep.returncode == 143
    for seed in (0, 1):
        assert f"[seed-{seed}] stopped by SIGTERM; saved a checkpoint." in output
    assert "stopped by SIGTERM with 0 of 3 runs finished. To resume: python -m trainers.sweep --jobs 2" in output
    assert not (tmp_path / "seed-2").exists()


@pytest.mark.skipif(cores() < 2, reason="needs two cores")
def test_a_usage_error_of_one_run_stops_the_others(tmp_path, request):
    (tmp_path / "seed-1").mkdir()
    (tmp_path / "seed-1" / "config.json").write_text("{")
    sweep = request.getfixturevalue("sweep")
    output, _ = sweep.communicate(timeout=120)
    assert sweep.returncode == 2, output
    assert not (tmp_path / "seed-2").exists()
