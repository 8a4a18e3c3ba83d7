"""The cases of masks and of transformers on JAX, in programs of their own."""

import importlib.util

import pytest

from tests.support import mask_cases, transformer_cases


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
@pytest.mark.parametrize("cases", [mask_cases, transformer_cases], ids=["masks", "transformers"])
def test_on_jax(cases, program):
    names = list(cases.CASES)
    done = program(cases.__name__, *names, env={"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == names
