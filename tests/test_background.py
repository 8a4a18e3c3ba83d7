"""One write at a time in a thread."""

import signal
import subprocess
import sys
import threading
import time

import pytest

from idmatters_tf._background import BackgroundWriter
from tests.conftest import ROOT

# How long a thread may take on a machine that is busy with other things.
PATIENCE = 60


@pytest.fixture
def blocked():
    """A writer with a write in flight, the event that lets the write go on, and what has happened."""
    writer, release, happened = BackgroundWriter(), threading.Event(), []

    def write():
        assert release.wait(PATIENCE)
        happened.append("written")

    writer.submit(write)
    yield writer, release, happened
    release.set()
    writer.wait()


def test_a_slow_write_is_not_waited_for_and_the_next_one_waits_for_it(blocked):
    writer, release, happened = blocked
    # Here, with the write in flight.
    happened.append("trained on")
    other = threading.Thread(target=writer.submit, args=(lambda: happened.append("next written"),))
    other.start()
    release.set()
    other.join(PATIENCE)
    writer.wait()
    assert happened == ["trained on", "written", "next written"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyError("x"), SystemExit(3)])
def test_an_error_is_raised_once_by_the_next_call(error):
    writer, happened = BackgroundWriter(), []

    def fail():
        raise error

    for notice in (writer.wait, lambda: writer.submit(lambda: happened.append("not written"))):
        writer.submit(fail)
        with pytest.raises(type(error)) as found:
            notice()
        assert found.value is error
    writer.submit(lambda: happened.append("written"))
    writer.wait()
    assert happened == ["written"]


def test_ctrl_c_while_waiting_is_raised_when_the_write_has_ended(blocked):
    writer, release, happened = blocked

    def interrupt():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        # Time for the main thread to go on, if it did.
        time.sleep(0.2)
        release.set()

    threading.Timer(0.1, interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        writer.wait()
    assert happened == ["written"]


def test_the_interpreter_does_not_end_before_the_write(tmp_path):
    script = """
import pathlib, sys, threading
from idmatters_tf._background import BackgroundWriter

def write():
    threading.main_thread().join()
    pathlib.Path(sys.argv[1]).write_text("whole")

BackgroundWriter().submit(write)
raise SystemExit(5)
"""
    path = tmp_path / "written"
    done = subprocess.run([sys.executable, "-c", script, path], cwd=ROOT, timeout=PATIENCE, check=False)
    assert done.returncode == 5
    assert path.read_text() == "whole"
