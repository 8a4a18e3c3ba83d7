"""Sweeps over seeds and options."""

import json
import shlex

import pytest

from trainers import cifar
from trainers.cifar import Cifar
from trainers.cli.arguments import UsageError
from trainers.cli.settings import as_dict, parse
from trainers.sweep import Settings, main, runs_of
from trainers.training.program import split


def test_a_run_for_each_seed_and_combination():
    vary = ("initializer=identity,standard", "widths=16 32,32 64", "nesterov=true,false")
    runs = runs_of("cifar", ["--preset", "quick"], Settings(seeds=(3, 5), vary=vary, out="runs/s"))
    assert len(runs) == 16
    assert shlex.join(runs["initializer-standard-widths-16-32-nesterov-true-seed-5"]) == (
        "--preset quick --initializer standard --widths 16 32 --nesterov --seed 5 "
        "--out runs/s/initializer-standard-widths-16-32-nesterov-true-seed-5"
    )
    assert "--nesterov" not in runs["initializer-identity-widths-32-64-nesterov-false-seed-3"]


@pytest.mark.parametrize(
    ("vary", "arguments", "message"),
    [
        (("initialiser=identity",), [], "there is no option --initialiser"),
        (("initializer",), [], "expected OPTION=VALUE,VALUE"),
        (("initializer=identity,identity",), [], "all different"),
        (("seed=1,2",), [], "give the seeds as --seeds"),
        (("nesterov=yes,no",), [], "is a flag: its values are true and false"),
        (("clip-norm=1,2",), ["--clip-norm", "3"], "--clip-norm is given twice"),
        (("widths=64 32,32 64",), [], "must not decrease"),
        ((), ["--out", "x"], "--out must not be among the options after --"),
        ((), ["--seed", "1"], "--seed must not be among"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_starts(vary, arguments, message):
    with pytest.raises(UsageError, match=message):
        runs_of("cifar", arguments, Settings(vary=vary))


def finished_run(folder, words, error):
    """A folder as a run with these options leaves it."""
    _, typed = split(Cifar, parse(cifar.parser(), words))
    folder.mkdir()
    config = {"program": "trainers.cifar", "settings": as_dict(Cifar.resolve({}, typed)), "data": {}}
    (folder / "config.json").write_text(json.dumps(config))
    record = {"kind": "test", "step": 10, "seconds": 60.0, "loss": 1.0, "error": error}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    numbers = {"steps": 60_000, "best_error": error, "best_step": 10, "last_error": error, "parameters": 7}
    (folder / "result.json").write_text(json.dumps({**numbers, "seconds": 60.0}))


def test_a_sweep_starts_its_runs_and_reports(tmp_path, capfd):
    words = ["--seeds", "7", "8", "--out", str(tmp_path), "--", "cifar", "--dataset", "shapes"]
    assert main(["--dry-run", *words]) == 0
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().out.count("python -m trainers.cifar") == 2
    for seed in (7, 8):
        finished_run(tmp_path / f"seed-{seed}", ["--dataset", "shapes", "--seed", str(seed)], seed / 100)
    assert main(["--format", "pdf", *words]) == 0
    assert (tmp_path / "report" / "comparison.pdf").read_bytes().startswith(b"%PDF")
    said = capfd.readouterr().out
    assert "[seed-8] " in said
    assert said.count("is finished. test error: best") == 2
    assert "7.50 ± 0.71" in (tmp_path / "report" / "comparison.md").read_text()
    # Bad input to one run is bad input to the sweep.
    (tmp_path / "seed-8" / "config.json").unlink()
    assert main(words) == 2
    assert "holds something other than a run" in capfd.readouterr().out
