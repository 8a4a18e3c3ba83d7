"""Tests of distances, singular values and callbacks with KERAS_BACKEND=jax."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.support import isometry_cases


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_jax_agrees_with_tensorflow():
    ours = isometry_cases.numbers()
    env = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.support.isometry_cases"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert (ours.pop("backend"), theirs.pop("backend")) == ("tensorflow", "jax")
    assert list(ours) == list(theirs)
    np.testing.assert_allclose(ours["ends"], [[2], [1]], rtol=1e-3)
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value, atol=2e-4, err_msg=name)
