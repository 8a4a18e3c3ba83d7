"""Test files that also run on Keras' JAX backend or on two devices, in processes of their own."""

import pytest

from tests.support import two_devices
from tests.support.processes import run_forked

DEVICES = "callbacks/test_devices.py"
STOPPED = "callbacks/test_exact_resume.py::test_stopped_and_started_again"
RESUME = [f"callbacks/test_{name}.py" for name in ("background_saving", "resume_and_callbacks", "sources")]
# Files with layers, and with models of Keras and of KerasHub.
MODELS = ["depth/test_scale.py", "layers/test_convolutional.py", "layers/test_dense.py", "models/test_transfer.py"]
MODELS += [f"isometry/test_{name}.py" for name in ("callbacks", "masks", "norms", "transformers")]
MODELS += [f"surgery/test_{name}.py" for name in ("copies", "hub_models")]
# Backend, number of devices, and the tests of one process.
RUNS = [
    ("tensorflow", 2, [DEVICES]),
    ("jax", 2, [DEVICES, f"{STOPPED}[several steps per execution, loss scale, class weights]"]),
    pytest.param("jax", 2, [STOPPED, *RESUME], marks=pytest.mark.slow),
    *(pytest.param("jax", 1, [path], marks=pytest.mark.slow) for path in MODELS),
]


@pytest.mark.skipif(two_devices.ARE_MADE, reason="this is a process with two devices")
@pytest.mark.parametrize(("backend", "devices", "paths"), RUNS)
def test_in_another_process(backend, devices, paths, program, slow):
    pytest.importorskip(backend)
    env = {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", two_devices.VARIABLE: str(devices)}
    options = ["--slow"] if slow and devices == 2 else []
    command = ["pytest", "-p", "no:cacheprovider", *options, *(f"tests/{path}" for path in paths)]
    done = run_forked(*command, devices=2) if backend == "tensorflow" else program(*command, env=env, timeout=1800)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
