"""Tests that checkpoints of other runs are rejected, and that a run ends when its folder is removed."""

import json
import pathlib
import shutil
import threading
import time

import pytest

from tests.support.occupants import tree
from tests.support.programs import run_here
from tests.trainers.test_foreign_files import TINY, refused
from trainers import cifar


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return two runs of the same network with different seeds and learning rates."""
    folder = tmp_path_factory.mktemp("runs")
    assert cifar.main([*TINY.split(), "--out", str(folder / "one")]) == 0
    assert cifar.main([*TINY.split(), "--seed", "1", "--learning-rate", "0.05", "--out", str(folder / "two")]) == 0
    return folder


@pytest.fixture
def mixed(runs, tmp_path):
    """Return the first run with the newest checkpoint of the second one."""
    run = pathlib.Path(shutil.copytree(runs / "one", tmp_path / "run"))
    shutil.rmtree(run / "checkpoints" / "step-00000006")
    shutil.copytree(runs / "two" / "checkpoints" / "step-00000006", run / "checkpoints" / "step-00000006")
    return run


@pytest.mark.parametrize(
    "command",
    [
        ("trainers.cifar", "--resume", "--out"),
        ("trainers.cifar", "--resume", "--steps", 8, "--out"),
        ("trainers.cifar", "--evaluate"),
        ("trainers.cifar", "--export-only"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(mixed, tmp_path, command):
    if "--resume" in command:
        (mixed / "result.json").unlink()
    before = tree(tmp_path)
    ended = run_here(*command, mixed)
    assert ended.returncode == 2
    for expected in (
        "step-00000006 is a checkpoint of another run: ",
        "seed was 1, now 0",
        "learning_rate was 0.05, now 0.1",
    ):
        assert expected in ended.stderr
    assert "metrics.jsonl" not in ended.stderr
    assert tree(tmp_path) == before


def test_a_card_of_another_run_is_not_made(mixed, tmp_path):
    refused(tmp_path, "is a checkpoint of another run", "trainers.card", mixed, "--no-measure", "--out", tmp_path / "c")


def test_the_best_weights_of_another_run_are_not_exported(runs, mixed, tmp_path):
    run = pathlib.Path(shutil.copytree(runs / "one", tmp_path / "best"))
    shutil.rmtree(run / "checkpoints" / "best")
    shutil.copytree(runs / "two" / "checkpoints" / "best", run / "checkpoints" / "best")
    (run / "result.json").unlink()
    ended = run_here("trainers.cifar", "--resume", "--out", run)
    assert ended.returncode == 2
    assert "checkpoints/best/step-0000000" in ended.stderr


@pytest.mark.slow
def test_an_extended_run_accepts_its_own_checkpoints(runs, tmp_path):
    run = pathlib.Path(shutil.copytree(runs / "one", tmp_path / "run"))
    for steps in (8, 10):
        assert run_here("trainers.cifar", "--resume", "--steps", steps, "--out", run).returncode == 0
        assert json.loads((run / "result.json").read_text())["steps"] == steps


def _taken_away(run):
    run.rename(run.with_name("elsewhere"))


def _without_lock(run):
    (run / ".lock").unlink()


def _another_in_its_place(run):
    _taken_away(run)
    run.mkdir()
    (run / "thesis.txt").write_text("mine")


@pytest.mark.parametrize("lose", [_taken_away, _without_lock, _another_in_its_place])
def test_a_run_ends_when_its_folder_is_taken_away(tmp_path, lose):
    run = tmp_path / "run"

    def take_away():
        deadline = time.monotonic() + 120
        while not (run / "checkpoints" / "step-00000004").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        lose(run)

    thread = threading.Thread(target=take_away)
    thread.start()
    # The last occurrence of an option counts.
    long = "--steps 100000 --drop-steps 90000 --log-every 1 --evaluate-every 10"
    ended = run_here("trainers.cifar", *TINY.split(), *long.split(), "--out", run)
    thread.join()
    assert ended.returncode == 1
    lost = run / ".lock" if lose is not _taken_away else run
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {lost} was deleted, moved or replaced while this process was using {run}. Nothing")
    assert "Traceback" not in ended.stderr
    if lose is _taken_away:
        assert not run.exists()
    if lose is _another_in_its_place:
        assert [path.name for path in run.iterdir()] == ["thesis.txt"]
    if lose is _without_lock:
        assert not (run / ".lock").exists()
