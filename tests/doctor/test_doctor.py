"""The doctor finds the first difference of known cases, and none in their clean twins."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from idmatters_tf.doctor import _child, explain_differences
from idmatters_tf.doctor.__main__ import main
from idmatters_tf.doctor._report import ALSO_UNCHANGED
from idmatters_tf.doctor._summaries import constant_ratio, describe_size, is_rounding, relative_size, summarize
from tests.doctor.cases import CASES
from tests.support.processes import fork

FAST = ("initial weights", "best value")
# Several runs, because some may be equal.
RACES = ("threads of a PyDataset", "parallel map")


def run_child(arguments, folder, environment, output):
    """Run a process of the doctor that is forked."""
    os.setsid()
    for descriptor in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY), descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    np.random.seed()  # noqa: NPY002
    _child.main()


class Forked:
    """Process of the doctor with the modules imported, with the interface of `subprocess.Popen` that it uses."""

    def __init__(self, command, cwd, env, stdout, **_):
        self._process = fork(run_child, command[1:], cwd, env, stdout.name)
        self.pid = self._process.pid

    def wait(self, timeout=None):
        self._process.join(timeout)
        return self._process.exitcode


@pytest.fixture
def forked(monkeypatch):
    """Fork the processes of the doctor, which import TensorFlow otherwise."""
    if keras.backend.backend() == "tensorflow":
        monkeypatch.setattr(subprocess, "Popen", Forked)


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_known_cases_and_their_twins(tmp_path, name, request):
    # Threads and seeds of hashes are settings of a new process.
    if name not in ("order of a set", "number of threads"):
        request.getfixturevalue("forked")
    if keras.backend.backend() != "tensorflow" and name == "scalar loss":
        pytest.skip("a strategy of TensorFlow")
    script, (old, new), kind, words = CASES[name]
    path = tmp_path / "fit.py"
    path.write_text(script)
    if keras.backend.backend() == "jax" and name == "parallel map":
        # Keras reads the first batch twice on JAX, which moves the generator also with one thread.
        words = "batch", "that several threads share"
    repetitions = 3 if name in RACES else 1
    (finding,) = explain_differences(path, kind, repetitions=repetitions)
    for word in words:
        assert word in str(finding), finding
    assert old in script
    path.write_text(script.replace(old, new))
    (finding,) = explain_differences(path, kind, repetitions=repetitions)
    assert finding.difference is None, finding
    # A model that its first step builds has no weights before it. JAX builds it before.
    is_built = keras.backend.backend() == "jax" or name != "weights of the first step"
    assert finding.steps == (3 if is_built else 2)
    # Runs write into copies of the folder.
    assert [entry.name for entry in tmp_path.iterdir()] == ["fit.py"]


@pytest.mark.slow
def test_a_script_that_begins_again(tmp_path, forked):
    path = tmp_path / "fit.py"
    path.write_text(CASES["position of the data"][0].replace("callbacks=callbacks", "callbacks=[]"))
    (finding,) = explain_differences(path, "restart", repetitions=1)
    assert finding.difference is None
    assert "nothing was restored" in str(finding)


@pytest.mark.slow
def test_a_run_that_differs_also_without_the_change(tmp_path):
    path = tmp_path / "fit.py"
    path.write_text(CASES["initial weights"][0])
    (finding,) = explain_differences(path, "hashseed", repetitions=1)
    assert (finding.difference.phase, finding.note) == ("weights", ALSO_UNCHANGED)
    assert "set_random_seed" in finding.cause.remedy


def test_functions_are_called_again():
    def train(seed=None):
        if seed is not None:
            keras.utils.set_random_seed(seed)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
        model.fit(x, x[:, :1], batch_size=8, verbose=0)

    (finding,) = explain_differences(train, repetitions=2)
    assert (finding.differing, finding.difference.phase) == (2, "weights")
    (finding,) = explain_differences(lambda: train(0), repetitions=2)
    assert (finding.differing, finding.difference) == (0, None)
    with pytest.raises(ValueError, match="`against` must be 'again' for a function"):
        explain_differences(train, "restart")


def test_the_observed_run_is_the_unobserved_one():
    def train(epochs):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        x = np.random.default_rng(0).normal(size=(22, 4)).astype("float32")
        model.fit(x, x[:, :1], batch_size=8, epochs=epochs, verbose=0)
        weights.append(model.get_weights())

    weights: list = []
    train(1)
    explain_differences(lambda: train(1), steps=9, repetitions=1)
    for other in weights[1:]:
        for first, second in zip(weights[0], other, strict=True):
            np.testing.assert_array_equal(first, second)
    assert len(weights) == 3


def test_sizes_of_differences():
    values = np.random.default_rng(0).normal(size=100).astype("float32")
    first = summarize(values)
    assert first == summarize(values.copy())
    assert is_rounding(first, summarize(values * np.float32(1 + 1e-6)))
    assert not is_rounding(first, summarize(values + np.float32(0.1)))
    # An exact factor is never rounding.
    double = summarize(2 * values)
    assert constant_ratio(first, double) == pytest.approx(2)
    assert describe_size(first, double) == "an exact factor: 2 times the first"
    assert not is_rounding(first, double, tolerance=10.0)
    assert relative_size(first, summarize(np.where(np.arange(100) == 0, 0, values))) > 0
    assert describe_size(first, summarize(values[:5])).startswith("shapes [100] and [5]")
    assert describe_size(first, None) == "only one of the runs has it"


def test_command_line(tmp_path, capsys, forked):
    path = tmp_path / "fit.py"
    path.write_text("import keras\nprint('nothing')\n")
    assert main([str(path)]) == 2
    assert "it must call `fit`" in capsys.readouterr().err
    assert main([str(tmp_path / "missing.py")]) == 2
    assert main([str(path), "--against", "moon"]) == 2
    assert "`against` must be some of again, restart" in capsys.readouterr().err
    path.write_text("import keras\nraise SystemError('broken here')\n")
    assert main([str(path)]) == 2
    assert "broken here" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert capsys.readouterr().err.count("\n") == 1


def test_large_folders_are_refused(tmp_path, capsys, monkeypatch, forked):
    monkeypatch.setattr("idmatters_tf.doctor._runs.LARGEST_FOLDER", 1000)
    (tmp_path / "fit.py").write_text("import sys\nsys.exit('started')\n")
    for folder, expected in ((".venv", "started"), ("data", "must have less than 1 GiB")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "large.bin").write_bytes(bytes(1001))
        assert main([str(tmp_path / "fit.py")]) == 2
        assert expected in capsys.readouterr().err


def test_json_and_exit_codes_of_new_processes(tmp_path, capsys, monkeypatch):
    # The working folder is that of this process, if it contains the script.
    path = tmp_path / "scripts/fit.py"
    path.parent.mkdir()
    path.write_text("open('seeds.txt').close()\n" + CASES["initial weights"][0])
    (tmp_path / "seeds.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert main([str(path), "--repetitions", "1", "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)
    assert finding["difference"]["phase"] == "weights"
    assert "set_random_seed" in finding["cause"]["remedy"]
