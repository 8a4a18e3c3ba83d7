"""One process at a time for a run's folder."""

import os
import pathlib
import platform
import signal
import socket
import subprocess
import sys
import time

import pytest

from idmatters_tf.locking import FILE, FolderInUse, FolderLock
from tests.conftest import ROOT
from trainers.cli.arguments import UsageError
from trainers.run.lock import locked

HOLD = """
import sys
from trainers.run.lock import locked

with locked(sys.argv[1], print):
    print(1, flush=True)
    input()
"""


DISAPPEAR = """
import ctypes, os, platform, sys, threading, time
from idmatters_tf.locking import FolderLock

lock = FolderLock(sys.argv[1])
threading.Thread(target=lambda: (time.sleep(1.5), os._exit(0))).start()
print(1, flush=True)
# The system call `exit` ends the main thread alone.
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""


@pytest.fixture
def held(tmp_path):
    """A folder whose lock another process holds, and that process."""
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
    with pytest.raises(UsageError, match=expected), locked(folder, print):
        pass
    assert (folder / FILE).exists()


def test_a_killed_process_holds_nothing(held):
    folder, process = held
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    assert (folder / FILE).exists()
    with locked(folder, print):
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
        with locked(tmp_path / "kept" / "new" / "run", print):
            pass
        with locked(tmp_path / "kept", print):
            pass
    assert [*tmp_path.rglob("*")] == [tmp_path / "kept"]


def test_a_folder_that_has_been_filled_stays(tmp_path):
    with locked(tmp_path / "run", print):
        (tmp_path / "run" / "config.json").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.json"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(UsageError, match=r"cannot be written: Not a directory\."),
        locked(tmp_path / "file" / "x", print),
    ):
        pass


FORK = """
import os, sys, time
from idmatters_tf.locking import FolderLock

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
