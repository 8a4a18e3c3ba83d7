"""Tests that checkpoints of other runs are rejected, and that a run ends when its folder is removed."""

import pathlib
import shutil
import threading
import time

import pytest

from tests.support.occupants import tree
from tests.support.programs import run_here
from tests.trainers.conftest import TINY
from tests.trainers.test_foreign_files import refused


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Return a run of the network of `finished` with another seed and another learning rate."""
    folder = tmp_path_factory.mktemp("runs") / "other"
    done = run_here("trainers.cifar", *TINY.split(), "--seed", 1, "--learning-rate", 0.05, "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def mixed(finished, other, tmp_path):
    """Return the first run with the newest checkpoint of the second one."""
    run = pathlib.Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.rmtree(run / "checkpoints" / "step-00000006")
    shutil.copytree(other / "checkpoints" / "step-00000006", run / "checkpoints" / "step-00000006")
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


def test_the_best_weights_of_another_run_are_not_exported(finished, other, tmp_path):
    run = pathlib.Path(shutil.copytree(finished, tmp_path / "best"))
    shutil.rmtree(run / "checkpoints" / "best")
    shutil.copytree(other / "checkpoints" / "best", run / "checkpoints" / "best")
    (run / "result.json").unlink()
    ended = run_here("trainers.cifar", "--resume", "--out", run)
    assert ended.returncode == 2
    assert "checkpoints/best/step-0000000" in ended.stderr


def test_checkpoints_that_cannot_be_used_are_named(finished, tmp_path):
    damaged = pathlib.Path(shutil.copytree(finished, tmp_path / "damaged"))
    for path in damaged.glob("checkpoints/step-*/checkpoint.index"):
        path.write_bytes(b"")
    train = ("trainers.cifar", *TINY.split(), "--out", tmp_path / "new", "--init-from")
    for command, message in (
        (("trainers.cifar", "--evaluate", damaged), f"{damaged} has no intact checkpoint. Train it again"),
        ((*train, damaged), f"--init-from {damaged} has no intact checkpoint. Name the folder of a run"),
        ((*train, finished, "--widths", 8), "the network of this run is not the one to be trained"),
    ):
        ended = run_here(*command)
        assert ended.returncode == 2
        assert message in ended.stderr
        shutil.rmtree(tmp_path / "new", ignore_errors=True)


def _taken_away(run):
    run.rename(run.with_name("elsewhere"))


def _another_in_its_place(run):
    _taken_away(run)
    run.mkdir()
    (run / "thesis.txt").write_text("mine")


@pytest.mark.parametrize("lose", [_taken_away, _another_in_its_place])
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
    else:
        assert [path.name for path in run.iterdir()] == ["thesis.txt"]
