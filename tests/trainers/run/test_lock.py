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
from idmatters_tf._locking import FILE, FolderInUse, FolderLock, FolderLost
from idmatters_tf._ownership import PathOccupied
from idmatters_tf._replacing import updating, write_atomically
from tests.conftest import ROOT
from tests.support.occupants import tree
from trainers.cli.arguments import RunError, UsageError
from trainers.run.folder import Run
from trainers.run.lock import hold_lock

HOLD = """
import sys
from trainers.run.lock import hold_lock

with hold_lock(sys.argv[1], print):
    print(1, flush=True)
    input()
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


@pytest.fixture
def held(tmp_path):
    """Return a folder whose lock another process holds, and the process."""
    folder = tmp_path / "run"
    command = [sys.executable, "-c", HOLD, folder]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        yield folder, process
        process.kill()


def test_a_second_process_is_told_who_holds_the_folder(held):
    folder, process = held
    expected = f"--out {folder} is in use by process {process.pid} on {socket.gethostname()}. Wait until"
    with pytest.raises(UsageError, match=expected), hold_lock(folder, print):
        pass
    assert (folder / FILE).exists()


def test_a_killed_process_holds_nothing(held):
    folder, process = held
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    assert (folder / FILE).exists()
    with hold_lock(folder, print):
        assert str(os.getpid()) in (folder / FILE).read_text()


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


def _link(path, elsewhere):
    path.symlink_to(elsewhere)


def _dangling_link(path, elsewhere):
    elsewhere.unlink()
    path.symlink_to(elsewhere)


def _second_name(path, elsewhere):
    path.hardlink_to(elsewhere)


def _foreign_file(path, elsewhere):
    path.write_text("mine")


def _pipe(path, elsewhere):
    os.mkfifo(path)


def _folder(path, elsewhere):
    path.mkdir()


@pytest.mark.parametrize("occupy", [_link, _dangling_link, _second_name, _foreign_file, _pipe, _folder])
def test_what_is_no_lock_is_not_written_to(tmp_path, occupy):
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.write_text("mine")
    run.mkdir()
    occupy(run / FILE, elsewhere)
    before = tree(tmp_path)
    with pytest.raises(PathOccupied, match=r"\.lock is .*Move it away"):
        FolderLock(run)
    assert tree(tmp_path) == before


def _delete(run):
    shutil.rmtree(run)


def _move(run):
    run.rename(run.with_name("moved"))


def _replace(run):
    run.rename(run.with_name("moved"))
    FolderLock(run)


def _unlock(run):
    (run / FILE).unlink()


def _lock_again(run):
    (run / FILE).unlink()
    FolderLock(run)


@pytest.mark.parametrize("lose", [_delete, _move, _replace, _unlock, _lock_again])
def test_a_lost_folder_is_noticed_by_each_way_to_write(tmp_path, lose):
    path = tmp_path / "run"
    lock = FolderLock(path)
    run = Run(path)
    run.start({}, {"digest": "", "origin": ""})
    run.record(kind="train", step=1)
    lose(path)
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
    write_atomically(tmp_path / "report.html", "")
    lock.release()
    (tmp_path / "report.html").unlink()
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


FORK = """
import os, sys, time
from idmatters_tf._locking import FolderLock

lock = FolderLock(sys.argv[1])
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(100)
"""


def test_a_child_of_a_killed_process_holds_nothing(tmp_path):
    with subprocess.Popen([sys.executable, "-c", FORK, tmp_path], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        with pytest.raises(FolderInUse, match=str(process.pid)):
            FolderLock(tmp_path)
        process.kill()
        process.wait()
        try:
            FolderLock(tmp_path).release()
        finally:
            os.kill(child, signal.SIGKILL)
