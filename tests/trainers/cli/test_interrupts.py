"""Ctrl-C outside of training: exit code 130 and one line."""

import subprocess
import sys

from tests.conftest import ROOT

PROGRAM = """
import os, signal, time
from trainers.cli.startup import run_program

def main(argv):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(20)

run_program(main)
"""


def test_an_interrupted_program_prints_one_line():
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "stopped by Ctrl-C; saved files are intact\n")
