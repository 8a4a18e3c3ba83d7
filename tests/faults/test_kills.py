"""SIGKILL at any moment: the run that goes on ends with the same bits as one that was never disturbed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT
from tests.faults.conftest import STEPS, TINY
from tests.support.processes import assert_same_run, records, start, wait_until

KILLS_A_RUN = 3


def metrics(run):
    return [(record["kind"], record["step"], record["loss"], record["error"]) for record in records(run)]


@pytest.fixture(scope="session")
def many_kills(more_faults):
    if not more_faults:
        pytest.skip("with --faults 2 only: tests/trainers/test_cifar.py kills a run as well")


@pytest.mark.usefixtures("many_kills")
def test_random_kills(whole, tmp_path, chance, amount, count_faults):
    kills = bad = 0
    failures = []
    for number in range(amount):
        run = tmp_path / f"run-{number}"
        for _ in range(KILLS_A_RUN):
            process = start("trainers.cifar", *TINY, "--out", run)
            if chance.random() < 0.3:
                # While it imports, loads, restores or compiles.
                time.sleep(8 * chance.random())
            else:
                wait_until(process, run, chance.randrange(5, STEPS))
                time.sleep(0.2 * chance.random())
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
            kills += 1
        process = start("trainers.cifar", *TINY, "--out", run)
        output, _ = process.communicate(timeout=600)
        try:
            assert process.returncode == 0, output
            assert "Traceback" not in output
            assert_same_run(run, whole)
            assert metrics(run) == metrics(whole)
            assert not list(run.rglob(".writing-*"))
        except AssertionError as error:
            bad += KILLS_A_RUN
            failures.append(error)
    count_faults("SIGKILL at a random moment, then the same command", kills, kills - bad)
    assert not failures, failures[0]


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_random_kills_of_fit(backend, tmp_path, chance, amount, count_faults):
    command = [sys.executable, "-m", "tests.support.killed_fit", tmp_path, KILLS_A_RUN * amount, chance.random()]
    env = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run([*map(str, command)], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    tried, survived = map(int, done.stdout.split())
    count_faults(f"`model.fit` with `ExactResume` on {backend}: SIGKILL, then the same script", tried, survived)
    assert tried
    assert survived == tried
