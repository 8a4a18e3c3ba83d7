"""`fit` in processes that are killed by SIGKILL at random moments: it ends with the bits of an uninterrupted run."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


def counts(folder, backend, kills, *options):
    """Return [source, devices, kills tried, survived, during the write of a checkpoint] of each case, and the log."""
    command = [sys.executable, "-m", "tests.support.killed_fit", str(folder), str(kills), "0", *options]
    env = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    # Data sets print lines of their own.
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_every_source_of_data_survives(backend, tmp_path, slow):
    if backend == "jax":
        pytest.importorskip("jax")
    kills, devices = (2, ["1", "2"]) if slow else (1, ["1"])
    cases, log = counts(tmp_path, backend, kills, "--network", "quick", "--devices", *devices)
    assert len(cases) >= 6
    assert [(source, survived) for source, _, _, survived, _ in cases if survived != kills] == [], log


@pytest.mark.slow
def test_two_optimizers_survive(tmp_path):
    ((_, _, *survived, _),), log = counts(
        tmp_path, "tensorflow", 2, "--network", "adversarial", "--sources", "`ArrayBatches`"
    )
    assert survived == [2, 2], log
