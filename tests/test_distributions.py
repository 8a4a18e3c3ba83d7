"""The wheel is complete, and works in projects that have packages of the same names."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys

import pytest

import idmatters_tf
from tests.conftest import ROOT

# Keras on NumPy, which uses parts of JAX, starts faster than on TensorFlow.
BACKEND = "numpy" if importlib.util.find_spec("jax") else "tensorflow"
BOTH_SIDES = """
import json, os, sys
import models.own
import idmatters_tf, trainers
from idmatters_tf.models.cifar import identity_resnet

network = identity_resnet((8, 8, 3), blocks=1, widths=(4, 4, 8), stem=4)
paths = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
ours = [os.path.realpath(path) for path in paths if path.startswith(os.environ["PYTHONPATH"])]
print(json.dumps({
    "name": models.own.NAME,
    "parameters": network.count_params(),
    "packages": [idmatters_tf.__file__, trainers.__file__],
    "twice": [path for path in ours if ours.count(path) > 1],
}))
"""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """A folder with the sdist of the tracked files, and the wheel that is built from the sdist."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a checkout")
    folder = tmp_path_factory.mktemp("distributions")
    for name in tracked_files():
        (folder / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "project" / name, follow_symlinks=False)
    command = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "--outdir", folder / "dist"]
    subprocess.run([*command, folder / "project"], capture_output=True, text=True, check=True)
    return folder / "dist"


@pytest.fixture(scope="module")
def site(distributions, tmp_path_factory):
    """A folder of installed packages with the wheel alone."""
    folder = tmp_path_factory.mktemp("installed")
    (wheel,) = distributions.glob("*.whl")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", folder, wheel]
    subprocess.run(command, capture_output=True, text=True, check=True)
    return folder


def tracked_files():
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and os.path.lexists(ROOT / name)]


def test_the_wheel_installs_two_packages(site):
    names = {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"idmatters_tf", "trainers"}
    places = {"idmatters_tf": "", "models": "idmatters_tf/", "trainers": ""}
    sources = [name for name in tracked_files() if name.endswith((".py", ".toml", ".typed"))]
    expected = {places[name.split("/")[0]] + name for name in sources if name.split("/")[0] in places}
    assert len(expected) > 200
    assert not [name for name in expected if not (site / name).is_file()]


def run(site, project, *command):
    """The output of a command in somebody's project, where our packages are those of the wheel."""
    env = {**os.environ, "PYTHONPATH": str(site), "KERAS_BACKEND": BACKEND}
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_sides_work_beside_a_package_named_models(site, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/own.py").write_text("NAME = 'own'\n")
    (tmp_path / "models/__init__.py").write_text("")
    result = json.loads(run(site, tmp_path, sys.executable, "-c", BOTH_SIDES))
    assert result == {
        "name": "own",
        "parameters": 108 + 288 + 288 + (288 + 576) + 80,
        "packages": [str(site / name / "__init__.py") for name in ("idmatters_tf", "trainers")],
        "twice": [],
    }
    help_text = run(site, tmp_path, sys.executable, "-m", "trainers.cifar", "--help")
    assert "usage: python -m trainers.cifar" in help_text


def test_programs_work_beside_a_package_named_trainers(site, tmp_path):
    (tmp_path / "trainers").mkdir()
    (tmp_path / "trainers/__init__.py").write_text("raise ImportError('the package of the project')\n")
    version = run(site, tmp_path, sys.executable, "-P", "-m", "trainers.cifar", "--version")
    assert version == f"idmatters-tf {idmatters_tf.__version__} in {site}\n"
    assert "theorem-3-2" in run(site, tmp_path, sys.executable, "-P", "-m", "trainers.reproduce", "--list")
