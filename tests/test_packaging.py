"""Metadata, exports and entry points of the package."""

import configparser
import importlib
import os
import pkgutil
import re
import subprocess
import sys

import packaging.version
import pytest

import idmatters_tf
from tests.conftest import ROOT
from trainers.cli import startup


def setup():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def test_every_program_has_a_console_script():
    scripts = dict(line.split(" = ") for line in setup()["options.entry_points"]["console_scripts"].split("\n") if line)
    trainers = ROOT / "trainers"
    files = [*trainers.glob("*.py"), *trainers.glob("*/__main__.py")]
    programs = {path.parent.name if path.stem == "__main__" else path.stem for path in files if is_program(path)}
    assert set(scripts) == {f"idmatters-{name}" for name in programs}
    for script, target in scripts.items():
        module, _, function = target.partition(":")
        (name,) = getattr(importlib.import_module(module), function).args
        assert importlib.import_module(name).main
        assert name.removesuffix(".__main__") == script.replace("idmatters-", "trainers.")


def is_program(path):
    return 'if __name__ == "__main__":\n    run_program(main)' in path.read_text()


def test_a_package_that_hides_ours_is_named(tmp_path):
    (tmp_path / "idmatters_tf").mkdir()
    (tmp_path / "idmatters_tf/__init__.py").write_text("")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "trainers.report"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"{tmp_path / 'idmatters_tf' / '__init__.py'} hides our package 'idmatters_tf'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_extra_is_one_sentence(tmp_path):
    code = (
        "import sys; from trainers.console import cifar; sys.modules['tensorflow'] = None; "
        f"sys.argv = ['idmatters-cifar', '--preset', 'quick', '--out', {str(tmp_path / 'run')!r}]; cifar()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    install = "pip install 'idmatters-tf[tensorflow,train]'"
    assert done.stderr.splitlines()[-1] == f"error: tensorflow is not installed: {install}"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("program", "backend", "code"),
    [
        (["-m", "trainers.cifar"], "jax", 2),
        (["-m", "trainers.imagenet", "--help"], "jax", 0),
    ],
)
def test_programs_refuse_other_backends(program, backend, code, tmp_path):
    env = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *program]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    expected = (
        f"error: this program needs Keras' TensorFlow backend. Received: KERAS_BACKEND={backend}. Unset it, or train "
        "on JAX with examples/cifar_with_fit.py\n"
    )
    assert done.stderr == (expected if code else "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("missing", "code", "extras"),
    [
        (["tensorflow"], "import tensorflow", "tensorflow,train"),
        (["tensorflow", "matplotlib"], "import matplotlib", "tensorflow,train"),
        (["tensorboard"], "import tensorboard", "train"),
        (["tensorflow", "matplotlib"], "sys.argv[0] = 'idmatters-report'; import matplotlib", "train"),
    ],
)
def test_all_extras_that_a_program_needs_are_named_at_once(missing, code, extras, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["idmatters-cifar"])
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError) as error:
        exec(code, {"sys": sys})
    sentence, _ = startup.explain_error(error.value)
    assert sentence == f"{error.value.name} is not installed: pip install 'idmatters-tf[{extras}]'"


def test_version_option():
    command = [sys.executable, "-m", "trainers.shortcuts", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"idmatters-tf {idmatters_tf.__version__} in {ROOT}\n"


def test_the_mathematics_needs_neither_keras_nor_tensorflow():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['keras', 'tensorflow', 'matplotlib', 'tensorflow_datasets'])); "
        "import numpy as np; from idmatters_tf import linear; "
        "print(linear.factorize(np.diag([2.0, 3.0]), depth=4).shape, linear.sweep.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["(4,", "2,", "2)", "sweep"]


def test_import_is_light():
    code = (
        "import sys, idmatters_tf.models, trainers; dir(idmatters_tf); "
        "print([name for name in ('numpy', 'keras', 'tensorflow') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["idmatters_tf", "idmatters_tf.data", "idmatters_tf.models"])
def test_submodules_load_on_first_use(package):
    module = importlib.import_module(package)
    assert dir(module) == sorted(module.__all__)
    modules = {info.name for info in pkgutil.iter_modules(module.__path__) if not info.name.startswith("_")}
    for name in set(module.__all__) & modules:
        assert getattr(module, name).__name__ == f"{package}.{name}"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


def test_exports_of_the_package():
    """Compare the exported names with a second list; each is the object defined in its module."""
    exported = {
        "ExactResume": "callbacks",
        "HessianOperator": "curvature",
        "Muon": "optimizers",
        "RandomProjection": "layers",
        "ResidualConv2D": "layers",
        "block_distances": "isometry",
        "deepen": "surgery",
        "memorize": "expressivity",
    }
    modules = {info.name for info in pkgutil.iter_modules(idmatters_tf.__path__) if not info.name.startswith("_")}
    assert set(idmatters_tf.__all__) == {*exported, *modules, "__version__"}
    for name, module in exported.items():
        assert getattr(idmatters_tf, name) is getattr(getattr(idmatters_tf, module), name)


def test_the_version_is_the_changelogs_newest():
    version = packaging.version.Version(idmatters_tf.__version__)
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert packaging.version.Version(headings[0]) == version
    for file, pattern in (("CITATION.cff", r"^version: (.*)"), ("README.md", r"^  version = \{(.*)\}")):
        assert re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE) == [idmatters_tf.__version__], file


@pytest.mark.parametrize("package", ["idmatters_tf", "idmatters_tf/models", "trainers"])
def test_type_checkers_see_the_annotations(package):
    assert (ROOT / package / "py.typed").is_file()
