"""Quiet TensorFlow, a fixed Keras backend and float type, and helpers that run the programs as a user would."""

import gc
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# Small programs on JAX: compiling costs more than running.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# A program that a shell starts in the background ignores Ctrl-C, and so do the programs that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis
import pytest

from trainers.cli.startup import enable_onednn

enable_onednn()

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Timings vary on shared machines, so no deadline; the same examples each time, so that a failure can be repeated.
hypothesis.settings.register_profile("fast", deadline=None, derandomize=True, max_examples=20)
hypothesis.settings.register_profile("slow", deadline=None, derandomize=True, max_examples=40)


def pytest_configure(config):
    hypothesis.settings.load_profile("slow" if config.getoption("--slow") else "fast")


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run slow tests and the long variants of tests")


@pytest.fixture(scope="session", autouse=True)
def compiled_jax_programs():
    """Share compiled functions between the processes on JAX."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", folder)
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        yield


@pytest.fixture(scope="session", autouse=True)
def no_autotuning():
    """Switch off tf.data's autotuning. The end of an iterator waits for its next period, at worst for many seconds."""
    import keras

    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    from idmatters_tf._tensorflow_internals.pipelines import without_autotuning

    with pytest.MonkeyPatch.context() as patch:
        # Iterators call it on their data set.
        patch.setattr(tf.data.Dataset, "_apply_debug_options", without_autotuning)
        yield


def pytest_collection_finish():
    """Exclude the imported modules, most of all objects, from later garbage collections."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


# Files that take longest, or wait for other processes, begin first, so that nothing is waited for at the end.
FIRST = (
    "trainers/cluster/test_clusters.py",
    "test_documentation.py",
    "distribute/test_fit.py",
    "distribute/test_resume.py",
    "doctor/test_doctor.py",
    "trainers/test_cifar.py",
    "distribute/test_fit_on_workers.py",
    "callbacks/test_reached.py",
    "test_backends.py",
    "test_examples.py",
    "curvature/test_jax.py",
    "curvature/test_operators.py",
)


def pytest_collection_modifyitems(config, items):
    order = {str(ROOT / "tests" / name): number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(str(item.path), len(order)))
    if not config.getoption("--slow"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.fixture(autouse=True)
def default_policy():
    """Each test starts and ends with float32."""
    import keras

    keras.config.set_dtype_policy("float32")
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture(scope="module", autouse=True)
def op_determinism():
    """Switch off, after each file, the deterministic operations that its programs have enabled."""
    yield
    if config := sys.modules.get("tensorflow.python.framework.config"):
        config.disable_op_determinism()


@pytest.fixture(scope="session")
def slow(request) -> bool:
    """Return True if the long variants of tests are requested."""
    return request.config.getoption("--slow")


@pytest.fixture
def program():
    """Return a function that runs `python -m NAME ARGUMENTS...` and returns the completed process."""

    def run(*arguments, timeout=900, env=None, **kwargs):
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
