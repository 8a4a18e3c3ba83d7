"""The same layers, networks, distances and callbacks on Keras' JAX backend, in a separate process."""

import importlib.util
import json

import numpy as np
import pytest

from tests.support import backend_cases


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_jax_agrees_with_tensorflow(program, tmp_path):
    ours = backend_cases.numbers(tmp_path)
    done = program("tests.support.backend_cases", tmp_path, env={"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert (ours.pop("backend"), theirs.pop("backend")) == ("tensorflow", "jax")
    assert list(ours) == list(theirs)
    for shortcut in ("projection", "pad"):
        assert ours[f"head {shortcut}"] == theirs[f"head {shortcut}"]
    np.testing.assert_allclose(ours["ends"], [[2], [1]], rtol=1e-3)
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value, atol=1e-4, err_msg=name)
