"""Tests of the comparison of runs."""

import csv
import json
import os

import pytest

from trainers.cli.arguments import UsageError
from trainers.report import main

RESULT = {"steps": 30, "best_error": 0.25, "best_step": 20, "last_error": 0.3, "parameters": 1234, "seconds": 9.0}
RESULT |= {"last_loss": 1.0}


@pytest.fixture
def report(capsys):
    def run(*arguments):
        assert main(list(map(str, arguments))) == 0
        return capsys.readouterr().out

    return run


def make(folder, settings, errors, result=None):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"settings": settings, "data": {}, "versions": {}}))
    with open(folder / "metrics.jsonl", "w") as stream:
        for number, error in enumerate(errors, start=1):
            for kind in ("train", "test"):
                record = {"kind": kind, "step": 10 * number, "error": error, "loss": 1.0, "seconds": 60 * number}
                stream.write(json.dumps({**record, "images_per_second": 100.0 * number}) + "\n")
    if result:
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def test_comparison_of_runs(report, tmp_path):
    common = {"blocks": 3, "seed": 0, "out": "x", "log_every": 20}
    first = make(tmp_path / "a", {**common, "widths": [8, 16], "log_every": 1}, [0.5, 0.25, 0.3], RESULT)
    second = make(tmp_path / "b", {**common, "widths": [8, 32]}, [0.6])
    empty = make(tmp_path / "empty", common, [])
    said = report(first, second, empty, "--out", tmp_path / "report")
    assert f"left out, without a test result of a training program: {empty}\n" in said
    with open(tmp_path / "report" / "comparison.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows[0] == {
        "run": "a", "best error, %": "25.00", "at step": "20", "last error, %": "30.00", "steps": "30",
        "state": "finished", "parameters": "1234", "images/s": "200", "minutes": "3.0", "widths": "8 16",
    }  # fmt: skip
    assert (rows[1]["state"], rows[1]["widths"]) == ("not finished", "8 32")
    table = (tmp_path / "report" / "comparison.md").read_text()
    assert "| a | 25.00 | 20 | 30.00 | 30 | finished | 1234 | 200 | 3.0 | 8 16 |" in table.splitlines()
    assert any(line.split()[:6] == ["a", "25.00", "20", "30.00", "30", "finished"] for line in said.splitlines())
    assert (tmp_path / "report" / "comparison.png").read_bytes()[:4] == b"\x89PNG"


def test_diverged_runs_and_seeds(report, tmp_path):
    finished, diverged, empty = (tmp_path / name for name in ("start-s0", "start-s1", "other"))
    make(finished, {"seed": 0}, [0.5, 0.2], RESULT)
    make(diverged, {"seed": 1}, [0.6])
    make(empty, {"seed": 0}, [])
    for run, step in ((diverged, 17), (empty, 7)):
        with open(run / "metrics.jsonl", "a") as stream:
            stream.write(json.dumps({"kind": "diverged", "step": step, "seconds": 70}) + "\n")
    report(finished, diverged, empty, "--out", tmp_path / "report", "--format", "svg")
    figure = (tmp_path / "report" / "comparison.svg").read_text()
    for label in ("start-s0 (best 20.00 %)", "start-s1 (best 60.00 %, diverged at step 17)"):
        assert label in figure
    assert "other (no test, diverged at step 7)" in figure
    with open(tmp_path / "report" / "comparison.csv", newline="") as stream:
        rows = [(row["run"], row["best error, %"], row["state"], row["seed"]) for row in csv.DictReader(stream)]
    assert rows == [
        ("start-s0", "20.00", "finished", "0"),
        ("start-s1", "60.00", "diverged at step 17", "1"),
        ("other", "-", "diverged at step 7", "0"),
    ]


def test_a_folder_of_runs_can_be_compared_again(report, tmp_path):
    # Names need not be UTF-8.
    for name, seed in (("a", 0), ("b", 0), (os.fsdecode(b"\xe9"), 1)):
        make(tmp_path / name, {"seed": seed}, [0.5], RESULT)
    (tmp_path / "notes.txt").write_text("mine")
    # ExactResume's folder, and a run of another program.
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    make(tmp_path / "depth", {}, [])
    assert f"training program: {tmp_path / 'depth'}\n" in report(tmp_path, "--out", tmp_path / "report")
    said = report(*sorted(tmp_path.glob("*")), "--out", tmp_path / "report")
    assert said.splitlines()[0].endswith(
        ", ".join(str(tmp_path / n) for n in ("checkpoints", "depth", "notes.txt", "report"))
    )


def test_invalid_arguments_of_a_comparison(tmp_path):
    empty, run = make(tmp_path / "e", {}, []), make(tmp_path / "d", {}, [0.5])
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "comparison.md").write_text("mine")
    for arguments, message in (
        ([empty], "none of the runs"),
        ([tmp_path / "nowhere"], "nowhere does not exist"),
        ([run, "--out", tmp_path / "thesis"], "contains something other than files of this program"),
    ):
        with pytest.raises(UsageError, match=message):
            main([*map(str, arguments), *([] if "--out" in arguments else ["--out", str(tmp_path / "report")])])
    assert (tmp_path / "thesis" / "comparison.md").read_text() == "mine"
    assert not (tmp_path / "report").exists()
