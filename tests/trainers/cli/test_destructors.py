"""Tests that exceptions in destructors of TensorFlow's objects are not printed, but others are."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

TENSORFLOW = """
import logging
import types

errors = types.SimpleNamespace(OpError=type("OpError", (Exception,), {}))
config = types.SimpleNamespace(list_physical_devices=list)
get_logger = logging.getLogger
"""
PROGRAM = """
import sys
from trainers.cli import startup

class Executor:
    def __init__(self, error):
        self.error = error

    def __del__(self):
        raise self.error

def main(argv):
    startup.import_tensorflow()
    import tensorflow
    class UnavailableError(tensorflow.errors.OpError):
        pass
    Executor(UnavailableError("a task was lost"))
    if "also others" in argv:
        Executor(ValueError("a mistake"))
    # Destroyed with the interpreter.
    tensorflow.executor = Executor(UnavailableError("a task was lost"))
    return 0

startup.run_program(main)
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], ()),
        (["also others"], ("ValueError: a mistake",)),
        (["--debug"], ("UnavailableError: a task was lost",) * 2),
    ],
)
def test_errors_of_destructors(tmp_path, options, said):
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, *options]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert [line.rpartition(".")[2] for line in lines if "Error: " in line] == [*said]
    assert done.stderr.count("Traceback") == len(said)
