"""Tests of the lock of a run's folder."""

import os
import pathlib
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from idmatters_tf._checkpointing import saving
from idmatters_tf._locking import FILE, FolderLock, FolderLost
from idmatters_tf._ownership import PathOccupied
from idmatters_tf._replacing import updating, write_atomically
from tests.conftest import ROOT
from tests.support.occupants import tree
from trainers.cli.arguments import RunError, UsageError
from trainers.run.folder import Run
from trainers.run.lock import hold_lock

FORK = """
import os, sys, time
from idmatters_tf._locking import FolderLock

lock = FolderLock(sys.argv[1])
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(100)
"""


DISAPPEAR = """
import ctypes, os, platform, sys, threading, time
from idmatters_tf._locking import FolderLock

lock = FolderLock(sys.argv[1])
threading.Thread(target=lambda: (time.sleep(1.5), os._exit(0))).start()
print(1, flush=True)
# The system call `exit` ends only the main thread.
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""


def test_a_folder_is_in_use_until_its_process_is_killed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", FORK, tmp_path], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        expected = f"--out {tmp_path} is in use by process {process.pid} on {socket.gethostname()}. Wait until"
        with pytest.raises(UsageError, match=expected), hold_lock(tmp_path, print):
            pass
        process.kill()
        process.wait(timeout=30)
        assert (tmp_path / FILE).exists()
        try:
            # The child of the killed process, which still runs, does not hold the lock.
            with hold_lock(tmp_path, print):
                assert str(os.getpid()) in (tmp_path / FILE).read_text()
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the number of a system call")
def test_the_end_of_a_process_whose_threads_still_run_is_waited_for(tmp_path):
    with subprocess.Popen([sys.executable, "-c", DISAPPEAR, tmp_path], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        state = pathlib.Path(f"/proc/{process.pid}/stat")
        while state.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        lock = FolderLock(tmp_path)
        assert process.wait(timeout=30) == 0
        lock.release()


def test_it_can_be_held_again_and_leaves_nothing(tmp_path):
    (tmp_path / "kept").mkdir()
    for _ in range(2):
        with hold_lock(tmp_path / "kept" / "new" / "run", print):
            pass
        with hold_lock(tmp_path / "kept", print):
            pass
    assert [*tmp_path.rglob("*")] == [tmp_path / "kept"]


def test_a_folder_that_has_been_filled_stays(tmp_path):
    with hold_lock(tmp_path / "run", print):
        (tmp_path / "run" / "config.json").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.json"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(UsageError, match=r"cannot be written: Not a directory\."),
        hold_lock(tmp_path / "file" / "x", print),
    ):
        pass


OCCUPANTS = {
    "link": lambda path, elsewhere: path.symlink_to(elsewhere),
    "dangling link": lambda path, elsewhere: path.symlink_to(elsewhere.with_name("missing")),
    "second name": lambda path, elsewhere: path.hardlink_to(elsewhere),
    "foreign file": lambda path, elsewhere: path.write_text("mine"),
    "pipe": lambda path, elsewhere: os.mkfifo(path),
    "folder": lambda path, elsewhere: path.mkdir(),
}


@pytest.mark.parametrize("kind", OCCUPANTS)
def test_what_is_no_lock_is_not_written_to(tmp_path, kind):
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.write_text("mine")
    run.mkdir()
    OCCUPANTS[kind](run / FILE, elsewhere)
    before = tree(tmp_path)
    with pytest.raises(PathOccupied, match=r"\.lock is .*Move it away"):
        FolderLock(run)
    assert tree(tmp_path) == before


def replace(run):
    run.rename(run.with_name("moved"))
    FolderLock(run)


def lock_again(run):
    (run / FILE).unlink()
    FolderLock(run)


LOSSES = {
    "deleted": shutil.rmtree,
    "moved": lambda run: run.rename(run.with_name("moved")),
    "replaced": replace,
    "unlocked": lambda run: (run / FILE).unlink(),
    "locked again": lock_again,
}


@pytest.mark.parametrize("kind", LOSSES)
def test_a_lost_folder_is_noticed_by_each_way_to_write(tmp_path, kind):
    path = tmp_path / "run"
    lock = FolderLock(path)
    run = Run(path)
    run.start({}, {"digest": "", "origin": ""})
    run.record(kind="train", step=1)
    LOSSES[kind](path)
    before = tree(tmp_path)

    def save():
        with saving(path / "checkpoints", 1):
            pass

    def update():
        with updating(path):
            pass

    for write in (
        lambda: run.record(kind="train", step=2),
        lambda: run.finish({}),
        lambda: run.restore_metrics(0, []),
        lambda: write_atomically(path / "table.csv", ""),
        save,
        update,
    ):
        with pytest.raises(FolderLost, match=f"{path}.* was deleted, moved or replaced while this process was using"):
            write()
    write_atomically(tmp_path / "report.md", "")
    lock.release()
    (tmp_path / "report.md").unlink()
    assert tree(tmp_path) == before


def test_a_lost_folder_ends_a_run_with_exit_code_1(tmp_path):
    def lose_and_write():
        with hold_lock(tmp_path / "run", print):
            (tmp_path / "run" / FILE).unlink()
            (tmp_path / "run").rmdir()
            write_atomically(tmp_path / "run" / "result.json", "")

    with pytest.raises(RunError, match=r"run was deleted, moved or replaced"):
        lose_and_write()
    assert not (tmp_path / "run").exists()
