"""Ends of a worker during `fit`: the others end within seconds, and name it or no worker."""

import re
import time

import pytest

from tests.support.processes import Cluster
from tests.support.worker_ends import STEP, STEPS

PROGRAM = "tests.support.worker_ends"


def run(workers, event, victim):
    """Return the exit codes and outputs of the workers, and the seconds since the victim has ended."""
    with Cluster(workers) as cluster:
        cluster.start(PROGRAM, event, victim)
        cluster.processes[victim].communicate()
        began = time.monotonic()
        return cluster.finish(timeout=600), time.monotonic() - began


def test_a_stop_on_one_worker_stops_all():
    """The workers also check models outside of the scope, and a cluster without TF_CONFIG."""
    ended, _ = run(2, "stops", "worker 1")
    for code, output in ended.values():
        assert (code, f"{STEP} steps" in output) == (0, True), output


CASES = [
    (3, "killed", "worker 0", -9, ""),
    (3, "killed", "worker 1", -9, ""),
    (3, "fails", "worker 1", 1, "an error of its own"),
    (2, "terminated", "worker 1", -15, ""),
    (2, "connection", "worker 1", -9, ""),
    (3, "connection", "worker 0", -9, ""),
]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "event", "victim", "code", "message"), CASES)
def test_the_others_end_and_blame_nobody_else(workers, event, victim, code, message):
    ended, seconds = run(workers, event, victim)
    found, output = ended.pop(victim)
    assert (found, message in output) == (code, True), output
    assert seconds < 60
    for code, output in ended.values():
        if event == "connection":
            # TensorFlow holds Python's lock, so that the time limit ends the worker by SIGKILL.
            assert (code, "within 20 seconds (timeout): a worker has ended" in output) == (-9, True), output
            continue
        assert code == 1, output
        assert re.search(rf"{victim} \(127.0.0.1:\d+\)|another task was lost", output), output
        assert not re.search(rf"(?!{victim})worker \d \(127.0.0.1:\d+\)", output), output
        assert int(re.search(r"(\d+) steps", output)[1]) < STEPS
