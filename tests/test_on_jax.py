"""Test files that also run on Keras' JAX backend, each in a process of its own."""

import importlib.util

import pytest

FILES = [
    "depth/test_scale.py",
    "isometry/test_masks.py",
    "isometry/test_transformers.py",
    "surgery/test_copies.py",
    "surgery/test_hub_models.py",
    "surgery/test_hub_tasks.py",
]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
@pytest.mark.parametrize("path", FILES)
def test_on_jax(path, program):
    env = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = program("pytest", "-p", "no:cacheprovider", f"tests/{path}", env=env, timeout=900)
    assert done.returncode == 0, done.stdout
