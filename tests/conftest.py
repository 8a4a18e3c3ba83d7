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
# Tests that start several processes at once; two of them side by side would be too many for small machines.
SEVERAL_PROCESSES = ("tests/trainers/cluster", "tests/faults/test_kills.py")

# Timings vary on shared machines, so no deadline; the same examples each time, so that a failure can be repeated.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("steady")


def pytest_addoption(parser):
    group = parser.getgroup("faults")
    group.addoption(
        "--faults",
        type=int,
        default=1,
        help="how many times as many faults to try in tests/faults, and, "
        "above 1, the long variants of the tests of several processes",
    )
    group.addoption("--faults-seed", default="0", help="tests/faults: what the faults are drawn from")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Groups tests for pytest-xdist: one file is one group, all tests of several processes are one, and come first."""

    def group(item):
        marker = item.get_closest_marker("xdist_group")
        path = item.path.relative_to(ROOT).as_posix()
        if marker is not None:
            return marker.args[0]
        return "processes" if path.startswith(SEVERAL_PROCESSES) else path

    items.sort(key=lambda item: group(item) != "processes")
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))


@pytest.fixture(autouse=True)
def default_policy():
    """Each test starts and ends with float32."""
    import keras

    keras.config.set_dtype_policy("float32")
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture(scope="session")
def more_faults(request) -> bool:
    """Whether the long variants of tests with many processes are wanted as well."""
    return request.config.getoption("--faults") > 1


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
