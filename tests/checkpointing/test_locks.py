"""Tests of the lock of a folder."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from idmatters_tf.checkpointing import FolderInUse, FolderLock, FolderLost, saving, write_atomically
from idmatters_tf.checkpointing.locks import LOCK_FILE
from tests.conftest import ROOT
from tests.support.occupants import tree

HOLD = """
import sys, time
from idmatters_tf.checkpointing import FolderLock

lock = FolderLock(sys.argv[1])
print(flush=True)
time.sleep(100)
"""


@pytest.fixture(autouse=True)
def default_policy():
    """Override the fixture of all tests. Nothing is computed in this process, so Keras need not be imported."""


def test_a_folder_is_in_use_until_its_process_is_killed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(FolderInUse, match=f"{tmp_path} is in use by another process. Wait until it has ended, or"):
            FolderLock(tmp_path)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == [LOCK_FILE]
    FolderLock(tmp_path).release()
    assert not os.listdir(tmp_path)


def test_folders_that_remain_empty_are_removed(tmp_path):
    (tmp_path / "kept").mkdir()
    for _ in range(2):
        FolderLock(tmp_path / "kept" / "new" / "run").release()
    FolderLock(tmp_path / "kept").release()
    filled = FolderLock(tmp_path / "filled")
    (tmp_path / "filled" / "config.json").touch()
    filled.release()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.json", "filled", "kept"]


def replace(run):
    run.rename(run.with_name("moved"))
    FolderLock(run)


LOSSES = {
    "deleted": shutil.rmtree,
    "replaced": replace,
    "unlocked": lambda run: (run / LOCK_FILE).unlink(),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_nothing_is_written_to_a_lost_folder(tmp_path, kind):
    path = tmp_path / "run"
    path.mkdir()
    lock = FolderLock(path)
    LOSSES[kind](path)
    before = tree(tmp_path)

    def save():
        with saving(path / "checkpoints", 1):
            pass

    for write in (save, lambda: write_atomically(path / "table.csv", "")):
        with pytest.raises(FolderLost, match=f"{path}.* was deleted, moved or replaced while this process was using"):
            write()
    write_atomically(tmp_path / "report.html", "")
    lock.release()
    (tmp_path / "report.html").unlink()
    assert tree(tmp_path) == before
