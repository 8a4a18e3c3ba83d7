"""What the package says about itself."""

import configparser
import importlib
import pkgutil
import subprocess
import sys

import pytest

import idmatters_tf
from tests.conftest import ROOT


def setup_requirements():
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg")
    return config["options"]["install_requires"].split()


def test_the_requirements_for_tensorflow_cpu_are_the_same_otherwise():
    lines = (ROOT / "requirements-cpu.txt").read_text().splitlines()
    listed = [line for line in lines if line and not line.startswith("#")]
    assert listed == [line.replace("tensorflow>=", "tensorflow-cpu>=") for line in setup_requirements()]


def test_import_is_light():
    code = (
        "import sys, idmatters_tf, models, trainers; "
        "print([name for name in ('numpy', 'keras', 'tensorflow') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["idmatters_tf", "idmatters_tf.data", "models"])
def test_submodules_load_on_first_use(package):
    module = importlib.import_module(package)
    names = set(module.__all__) - {"__version__"}
    assert names <= {info.name for info in pkgutil.iter_modules(module.__path__)}
    for name in names:
        assert getattr(module, name).__name__ == f"{package}.{name}"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


def test_arrows_run_one_way_and_models_are_pure_keras():
    forbidden = {
        "idmatters_tf": ("import models", "from models", "import trainers", "from trainers"),
        "models": ("import trainers", "from trainers", "import tensorflow", "from tensorflow"),
        "idmatters_tf/linear": tuple(
            f"{word} {name}" for word in ("import", "from") for name in ("keras", "tensorflow")
        ),
        "idmatters_tf/layers": ("import tensorflow", "from tensorflow"),
    }
    for folder, words in forbidden.items():
        for path in (ROOT / folder).rglob("*.py"):
            for line in path.read_text().splitlines():
                assert not line.strip().startswith(words), f"{path}: {line}"


def test_version():
    assert idmatters_tf.__version__.count(".") == 2
