"""Ctrl-C at any time: exit code 130 and one line."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT

SENTENCE = "stopped by Ctrl-C; saved files are intact\n"
PROGRAM = """
import os, signal, sys, time
from trainers.cli import startup

startup._SWALLOWED_AFTER = 0.5

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(20)

def plain(argv):
    interrupt()

def converted(argv):
    try:
        interrupt()
    except BaseException as error:
        raise ImportError("half imported") from error

def swallowed(argv):
    try:
        interrupt()
    except BaseException:
        time.sleep(20)

def ignored(argv):
    # Python ignores an exception in a destructor.
    startup._SWALLOWED_AFTER = 60
    class Owner:
        def __del__(self):
            interrupt()
    Owner()
    time.sleep(20)

def importing(argv):
    # A package in place of TensorFlow, whose import is interrupted, logs something, and fails.
    startup.import_tensorflow()

startup.run_program(globals()[sys.argv[1]])
"""
IMPORTED = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(20)
except BaseException as error:
    os.write(2, b"E0000 half initialized")
    raise ImportError("half imported") from error
"""


@pytest.mark.parametrize("what", ["plain", "converted", "swallowed", "ignored"])
def test_libraries_that_convert_or_suppress_the_exception(what):
    done = subprocess.run([sys.executable, "-c", PROGRAM, what], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, SENTENCE)


def test_during_the_import_of_tensorflow(tmp_path):
    (tmp_path / "tensorflow.py").write_text(IMPORTED)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, "importing"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, SENTENCE)


def test_during_the_import_of_the_program(tmp_path):
    # Replaces the first package that the program needs by one whose import never ends.
    (tmp_path / "argparse.py").write_text("import time\nprint(1, flush=True)\ntime.sleep(60)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "trainers.cifar"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "stopped by Ctrl-C before the start\n")


def test_an_ignored_signal_stays_ignored():
    program = PROGRAM.replace("time.sleep(20)", "sys.exit(7)")
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", program, "plain"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (7, "")
