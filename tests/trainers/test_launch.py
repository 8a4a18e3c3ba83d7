"""Processes that the launcher starts, and their end with it."""

import os
import pathlib
import signal
import time

import pytest

from tests.support.processes import start


def children(pid):
    """The processes that a process has started, from the kernel's list."""
    found = []
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            words = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # A zombie has ended; nobody has asked for its exit code.
        if words[1] == str(pid) and words[0] != "Z":
            found.append(int(status.parent.name))
    return found


def runs(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_launcher_leaves_no_process_behind(tmp_path):
    process = start("trainers.launch", "--workers", 3, "--", "cifar", "--dataset", "shapes", "--out", tmp_path / "run")
    deadline = time.monotonic() + 60
    while len(started := children(process.pid)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # Some of them import by now, some may already meet.
    time.sleep(2)
    assert all(map(runs, started))
    process.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    try:
        while any(map(runs, started)):
            assert time.monotonic() - killed < 15, started
            time.sleep(0.05)
    finally:
        for pid in filter(runs, started):
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=30)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no program to start"),
        (["--", "--steps"], "the name of a training program after --: cifar or imagenet. Received: '--steps'"),
        (["--", "nonsense"], "Received: 'nonsense'"),
        (["--", "report"], "Received: 'report'"),
        (["--workers", "0", "--", "cifar"], "--workers"),
    ],
)
def test_what_cannot_be_started_is_one_sentence(program, arguments, message):
    result = program("trainers.launch", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
