"""`fit` in processes that are killed by SIGKILL at random moments: it ends with the bits of an uninterrupted run."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_every_source_of_data_survives(backend, tmp_path, slow):
    pytest.importorskip(backend)
    kills, devices = (2, ["1", "2"]) if slow else (1, ["1"])
    command = [sys.executable, "-m", "tests.support.killed_fit", str(tmp_path), str(kills), "0"]
    command += ["--network", "quick", "--devices", *devices]
    env = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    # Data sets print lines of their own.
    counts = json.loads(done.stdout.splitlines()[-1])
    assert len(counts) >= 6
    assert [case for case in counts if case[-1] != kills] == [], done.stderr
