"""Sweeps over seeds and options."""

import shlex

import pytest

from trainers.cli.arguments import UsageError
from trainers.sweep import Settings, main, runs_of


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


def test_a_sweep_trains_and_reports(tmp_path, capfd):
    small = (
        "--dataset shapes --train-images 32 --test-images 16 --batch-size 8 --steps 2 --blocks 1 --stem 4 --widths 4"
    )
    words = ["--seeds", "7", "--out", str(tmp_path), "--", "cifar", *small.split()]
    assert main(["--dry-run", *words]) == 0
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().out.count("python -m trainers.cifar") == 1
    assert main(words) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"seed-7", "report"}
    assert "| seed-7 |" in (tmp_path / "report" / "comparison.md").read_text()
    # A finished run is left as it is.
    before = (tmp_path / "seed-7" / "metrics.jsonl").stat().st_mtime_ns
    assert main(words) == 0
    assert (tmp_path / "seed-7" / "metrics.jsonl").stat().st_mtime_ns == before
