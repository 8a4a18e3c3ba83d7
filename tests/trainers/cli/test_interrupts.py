"""Tests of Ctrl-C at any time: exit code 130 and one message."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT

SENTENCE = "stopped by Ctrl-C; what was saved before is intact\n"
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


@pytest.mark.parametrize("what", ["plain", "converted", "swallowed"])
def test_whatever_a_library_makes_of_it(what):
    done = subprocess.run([sys.executable, "-c", PROGRAM, what], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, SENTENCE)


def test_while_tensorflow_is_imported(tmp_path):
    (tmp_path / "tensorflow.py").write_text(IMPORTED)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, "importing"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, SENTENCE)


def test_while_the_program_itself_is_imported(tmp_path):
    # A package that is never imported to its end, in place of the first one that the program needs.
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
    assert (process.returncode, said) == (130, "stopped by Ctrl-C; nothing had begun\n")


def test_where_it_was_ignored_from_the_start_it_stays_ignored():
    program = PROGRAM.replace("time.sleep(20)", "sys.exit(7)")
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", program, "plain"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (7, "")
