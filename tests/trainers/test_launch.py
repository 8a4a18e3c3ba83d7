"""Processes of the launcher."""

import re
import signal
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.support.programs import run_here

SLEEPERS = """
import os, sys
from trainers import launch

launch.GRACE_SECONDS = 0.2

sleeper = '''
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit("saved") if sys.argv[1] == "0" else sys.exit(7))
# In one piece, since both processes write to the same pipe.
sys.stdout.write("sleeps" + chr(10))
sys.stdout.flush()
if sys.argv[1] == sys.argv[2]:
    sys.exit(3)
# A signal immediately before a sleep does not interrupt it.
for _ in range(600):
    time.sleep(0.1)
'''
words = [sys.executable, "-c", sleeper]
sys.exit(launch.run_together({f"worker {number}": ([*words, number, sys.argv[1]], os.environ) for number in "01"}))
"""


def test_signals_are_forwarded_to_all_processes():
    command = [sys.executable, "-c", SLEEPERS, "none"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["sleeps\n", "sleeps\n"]
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=900)
    assert process.returncode in (1, 7)
    assert (output, errors) == ("", "saved\n")


def test_a_failed_process_ends_the_others():
    command = [sys.executable, "-c", SLEEPERS, "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert (done.returncode, done.stderr) == (3, "worker 1 ended with exit code 3; ending the others\n")


@pytest.mark.slow
def test_a_script_with_fit_on_two_workers(program, tmp_path):
    """The example ends where a single process ends."""
    script = ROOT / "examples/fit_on_several_machines.py"
    options = ("--epochs", 1, "--images", 400, "--out")
    several = program("trainers.launch", "--workers", 2, script, *options, tmp_path / "two", timeout=900)
    assert several.returncode == 0, several.stdout
    command = [sys.executable, script, *map(str, options), tmp_path / "one"]
    alone = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=True)
    result = re.search(r"test loss \S+, accuracy \S+, on ", alone.stdout)
    assert result
    assert f"{result[0]}2 replicas" in several.stdout


def test_an_invalid_command_is_one_line():
    for arguments, received in (([], "nothing"), (["--", "report"], "report")):
        result = run_here("trainers.launch", *arguments, code=2)
        assert "error: expected a training program, cifar or imagenet, or the path of a script" in result.stderr
        assert result.stderr.endswith(f"Received: {received}\n")
    missing = run_here("trainers.launch", "nothing.py")
    assert (missing.returncode, missing.stderr) == (
        2,
        "error: there is no script nothing.py. Pass the path of an existing file.\n",
    )
