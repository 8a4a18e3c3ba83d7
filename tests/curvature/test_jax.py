"""Derivatives under KERAS_BACKEND=jax, and operators, compared with the matrices on TensorFlow."""

import importlib.util

import numpy as np
import pytest

from tests.curvature.both_backends import ROUNDED, matrices

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")


def test_matrices_and_derivatives_on_jax_equal_tensorflow(tmp_path, program, slow):
    # Recurrent layers take half of the time.
    ours, weights = matrices(None if slow else ("weights", "repeated outputs"))
    arrays = {f"{name}/{index}": part for name, parts in weights.items() for index, part in enumerate(parts)}
    np.savez(tmp_path / "weights.npz", **arrays)
    # The nested structures contain the closed forms, and the matrices derivatives of models. Others compile for long.
    options = [] if slow else ["-k", "nested or repeated or masks_on or wrong"]
    env = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
    files = tmp_path / "weights.npz", tmp_path / "jax.npz"
    done = program("tests.curvature.both_backends", *files, *options, env=env, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{8 if slow else 4} passed" in done.stdout
    with np.load(tmp_path / "jax.npz") as theirs:
        assert str(theirs["backend"]) == "jax"
        for name in ours:
            tolerance = (1e-6 if name.startswith(ROUNDED) else 1e-12) * np.abs(ours[name]).max()
            np.testing.assert_allclose(theirs[name], ours[name], atol=tolerance, rtol=0, err_msg=name)
