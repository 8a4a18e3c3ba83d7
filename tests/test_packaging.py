"""What the package says about itself."""

import ast
import configparser
import importlib
import pkgutil
import re
import subprocess
import sys

import packaging.version
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


def imported(path):
    """The modules that a file imports anywhere, by absolute names."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            modules |= {f"{node.module}.{name.name}" for name in node.names}
    return modules


def imports_of(module, packages):
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("idmatters_tf", ("models", "trainers")),
        ("idmatters_tf/linear", ("keras", "tensorflow")),
        ("idmatters_tf/layers", ("tensorflow",)),
        ("idmatters_tf/initializers.py", ("tensorflow",)),
        ("models", ("tensorflow", "trainers")),
        # Inside trainers: programs -> training -> cluster, run -> cli.
        ("trainers/cli", ("trainers.run", "trainers.cluster", "trainers.training")),
        ("trainers/run", ("trainers.cluster", "trainers.training")),
        ("trainers/cluster", ("trainers.run", "trainers.training")),
    ],
)
def test_imports_run_one_way(folder, forbidden):
    paths = [ROOT / folder] if folder.endswith(".py") else sorted((ROOT / folder).rglob("*.py"))
    assert paths
    for path in paths:
        for module in imported(path):
            assert not imports_of(module, forbidden), f"{path} imports {module}"


def test_what_programs_share_imports_no_program():
    rooms = ("cli", "run", "cluster", "training")
    allowed = [f"trainers.{room}" for room in rooms]
    for room in rooms:
        for path in (ROOT / "trainers" / room).rglob("*.py"):
            programs = [name for name in imported(path) if imports_of(name, ["trainers"])]
            assert all(imports_of(name, allowed) for name in programs), f"{path} imports {programs}"


def test_the_version_is_the_changelogs_newest():
    version = packaging.version.Version(idmatters_tf.__version__)
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert packaging.version.Version(headings[0]) == version


@pytest.mark.parametrize("package", ["idmatters_tf", "models", "trainers"])
def test_type_checkers_see_the_annotations(package):
    assert (ROOT / package / "py.typed").is_file()
