"""`fit` in processes that are killed by SIGKILL at random moments: it ends with the bits of an uninterrupted run."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


def check_survival(backend, folder, kills, *arguments):
    """Check that each case survives a number of kills. Return the number of cases."""
    pytest.importorskip(backend)
    command = [sys.executable, "-m", "tests.support.killed_fit", str(folder), str(kills), "0", *arguments]
    env = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    # Data sets print lines of their own.
    counts = json.loads(done.stdout.splitlines()[-1])
    assert [case for case in counts if case[-1] != kills] == [], done.stderr
    return len(counts)


@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.slow)])
def test_data_sources_after_kills(backend, tmp_path, slow):
    arguments = ["--devices", "1", "2"] if slow else ["--only", "arrays", "tf.data"]
    assert check_survival(backend, tmp_path, 1 + slow, "--network", "quick", *arguments) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_keras_hub_tasks_after_kills(backend, tmp_path):
    pytest.importorskip("keras_hub")
    assert check_survival(backend, tmp_path, 1, "--tasks") == 4
