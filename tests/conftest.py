"""Quiet TensorFlow, a fixed Keras backend and float type, and helpers that run the programs as a user would."""

import os
import pathlib
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import hypothesis
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Timings vary on shared machines, so no deadline; the same examples each time, so that a failure can be repeated.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("steady")


@pytest.fixture(autouse=True)
def default_policy():
    """Each test starts and ends with float32."""
    import keras

    keras.config.set_dtype_policy("float32")
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def program():
    """Runs `python -m NAME ARGUMENTS...` to its end; returns the completed process with its output as text."""

    def run(*arguments, timeout=240, env=None, **kwargs):
        return subprocess.run(
            [sys.executable, "-m", *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            **kwargs,
        )

    return run
