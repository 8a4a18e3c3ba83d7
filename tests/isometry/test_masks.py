"""Tests of blocks with Keras masks against finite differences of the whole model."""

import importlib.util

import pytest

from tests.support import mask_cases


@pytest.mark.parametrize("name", mask_cases.CASES)
def test_blocks_have_the_masks_of_the_model(name):
    mask_cases.compare(name)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_on_jax(program):
    names = list(mask_cases.CASES)
    done = program("tests.support.mask_cases", *names, env={"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == names
