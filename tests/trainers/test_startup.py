"""Start and end of the programs: optional packages and a closed pipe."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.support.programs import run_here
from trainers import cifar

TRAIN = ["--preset", "quick", "--out", "run"]
FOLDER = ["RUN", "RUN"]


@pytest.mark.parametrize(
    ("program", "arguments", "missing", "message"),
    [
        ("cifar", TRAIN, "tensorflow matplotlib", "tensorflow and matplotlib are not installed. Run pip install"),
        ("cifar", TRAIN, "matplotlib", "matplotlib is not installed. Run pip install '.[train]' in the checkout."),
        ("cifar", TRAIN, "tensorboard", "tensorboard is not installed. Run pip install '.[train]' in the checkout."),
        ("report", ["RUN"], "matplotlib", "matplotlib is not installed"),
        ("predict", FOLDER, "tensorflow", "tensorflow is not installed"),
        ("landscape", ["--out", "run"], "matplotlib", "matplotlib is not installed"),
        ("shortcuts", ["--out", "run"], "tensorflow", "tensorflow is not installed"),
        ("expressivity", ["--out", "run"], "tensorflow", "tensorflow is not installed"),
    ],
)
def test_programs_check_optional_packages_before_they_start(
    program, arguments, missing, message, tmp_path, monkeypatch, finished
):
    monkeypatch.chdir(tmp_path)
    for package in missing.split():
        monkeypatch.setitem(sys.modules, package, None)
    done = run_here(f"trainers.{program}", *(finished if word == "RUN" else word for word in arguments), code=1)
    assert done.stderr.startswith(f"error: {message}")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_training_on_jax_requires_jax_and_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    for package in ("jax", "matplotlib"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match="jax and matplotlib are not installed. Run pip install '.*jax,train"):
        cifar.main(["--preset", "quick", "--out", str(tmp_path / "run")])


def test_a_closed_pipe_prints_nothing():
    for words in ("trainers.reproduce --list", "trainers.cifar --help-all"):
        process = subprocess.Popen(
            [sys.executable, "-m", *words.split()], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() in (0, 1)
        process.stderr.close()
