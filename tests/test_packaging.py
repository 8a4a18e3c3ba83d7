"""What the package says about itself."""

import ast
import configparser
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys

import packaging.version
import pytest

import idmatters_tf
from tests.conftest import ROOT


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
        assert getattr(importlib.import_module(module), function).__doc__ == f"`{script}`"


def is_program(path):
    return 'if __name__ == "__main__":\n    run_program(main)' in path.read_text()


def start_script(name, folder, *arguments):
    """As the console script that pip writes: its own folder, not the current one, is on the path."""
    script = folder.parent / f"idmatters-{name}"
    script.write_text(f"from trainers.console import {name}\n{name}()\n")
    command = [sys.executable, str(script), *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def folder(tmp_path):
    """A project of somebody who has packages of the same names."""
    folder = tmp_path / "project"
    for name in ("models", "trainers"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("")
    return folder


def test_console_scripts_do_not_look_at_the_current_folder(folder):
    done = start_script("plan", folder)
    assert done.returncode == 0, done.stderr
    assert "35,694,336 parameters" in done.stdout
    shown = start_script("cifar", folder, "--help")
    assert shown.returncode == 0, shown.stderr
    assert "usage: idmatters-cifar" in shown.stdout
    assert "python -m" not in shown.stdout


def test_a_package_that_hides_ours_is_named(folder):
    shutil.rmtree(folder / "trainers")
    (folder / "models").rename(folder / "idmatters_tf")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "trainers.plan"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"{folder / 'idmatters_tf' / '__init__.py'} hides our package 'idmatters_tf'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_extra_is_one_sentence(tmp_path):
    code = (
        "import sys; from trainers.console import cifar; sys.modules['tensorflow'] = None; "
        f"sys.argv = ['idmatters-cifar', '--preset', 'quick', '--out', {str(tmp_path / 'run')!r}]; cifar()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: tensorflow is not installed: pip install 'idmatters-tf[tensorflow]'"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("program", ["cifar", "landscape", "plan", "shortcuts"])
def test_version_option(program):
    command = [sys.executable, "-m", f"trainers.{program}", "--version"]
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


def test_the_package_exports_what_people_come_for():
    """The names and their modules, written out a second time; each is the object that its module defines."""
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
        ("idmatters_tf", ("models", "idmatters_tf.models", "trainers")),
        ("idmatters_tf/linear", ("keras", "tensorflow")),
        ("idmatters_tf/layers", ("tensorflow",)),
        ("idmatters_tf/initializers.py", ("tensorflow",)),
        ("models", ("models", "tensorflow", "trainers")),
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
        # The package's own list of lazily loaded modules.
        modules = imported(path) - ({"idmatters_tf.models"} if path == ROOT / "idmatters_tf/__init__.py" else set())
        for module in modules:
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
    for file, pattern in (("CITATION.cff", r"^version: (.*)"), ("README.md", r"^  version = \{(.*)\}")):
        assert re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE) == [idmatters_tf.__version__], file


@pytest.mark.parametrize("package", ["idmatters_tf", "models", "trainers"])
def test_type_checkers_see_the_annotations(package):
    assert (ROOT / package / "py.typed").is_file()


@pytest.mark.parametrize("package", ["idmatters_tf", "models", "trainers"])
def test_every_public_function_is_annotated(package):
    places = []
    for path in sorted((ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        places += [f"{name}:{place}" for place in not_annotated(ast.parse(path.read_text()).body)]
    assert not places, "not annotated:\n" + "\n".join(places)


def test_what_is_not_annotated_is_found():
    source = "def whole(x: int, *others: int, **names: int) -> int: ...\n"
    assert not list(not_annotated(ast.parse(source).body))
    for part in ("x: int", "*others: int", "**names: int", " -> int"):
        broken = source.replace(part, part.removesuffix(": int").removesuffix(" -> int"))
        assert list(not_annotated(ast.parse(broken).body)), broken
    source = "class Whole:\n    def __init__(self, x): ...\n    def _hidden(self, x): ...\n"
    assert list(not_annotated(ast.parse(source).body)) == ["2 Whole.__init__: x"]
    assert list(not_annotated(ast.parse("if True:\n    def part() -> int: ...\nelse:\n    def part(): ...\n").body))


def not_annotated(body, owner=""):
    """The places in the public functions and methods of a module or class: line, name and what lacks an annotation."""
    for node in body:
        if isinstance(node, (ast.If, ast.Try)):
            yield from not_annotated([*node.body, *node.orelse], owner)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from not_annotated(node.body, f"{owner}{node.name}.")
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        # A special method's types are its protocol's, except where the caller names the arguments.
        if node.name.startswith("_") and node.name not in ("__init__", "__call__"):
            continue
        bound = owner and not any(isinstance(by, ast.Name) and by.id == "staticmethod" for by in node.decorator_list)
        received = [*node.args.posonlyargs, *node.args.args][1 if bound else 0 :] + node.args.kwonlyargs
        received += [star for star in (node.args.vararg, node.args.kwarg) if star is not None]
        missing = [each.arg for each in received if each.annotation is None]
        # What `__init__` returns goes without saying.
        missing += ["what it returns"] if node.returns is None and node.name != "__init__" else []
        if missing:
            yield f"{node.lineno} {owner}{node.name}: {', '.join(missing)}"
