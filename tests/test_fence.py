"""The fence around Keras, TensorFlow and JAX: private names are used in two rooms only, which name their modules.

`make lint` checks attributes of other objects with ruff. The tests here check imports, texts such as the argument of
`getattr`, and what a subclass uses or overrides.
"""

import ast
import functools
import importlib
import inspect
import pathlib
import pkgutil
import re
import textwrap

import keras
import pytest

from tests.conftest import ROOT

PRIVATE_ROOMS = ("_keras_internals", "_tensorflow_internals")
PRIVATE_MODULES = re.compile(r"\b(keras\.src|tensorflow\.python|tf\.__internal__|jax\._src)\b")
SOURCES = [
    path
    for folder in ("idmatters_tf", "models", "trainers", "benchmarks", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not set(path.parts) & set(PRIVATE_ROOMS)
]
FOREIGN = ("keras", "keras_hub", "tensorflow", "jax")


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def texts_of(node):
    """Return the texts that a call of `getattr` or its like contains."""
    if not isinstance(node, ast.Call) or getattr(node.func, "id", "")[3:] != "attr":
        return []
    return [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def accessed(tree):
    """Yield the names of attributes that are read, set or defined, also by `getattr` and its like."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        yield from texts_of(node)


def parse(kind):
    return ast.parse(textwrap.dedent(inspect.getsource(kind)))


@functools.cache
def private_names(kind):
    """Return the private methods and attributes that a foreign class defines."""
    found = set(filter(is_private, vars(kind)))
    stored = (
        node for node in ast.walk(parse(kind)) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    )
    return found | {node.attr for node in stored if is_private(node.attr)}


def foreign_bases(kind):
    return [base for base in kind.__mro__ if base.__module__.partition(".")[0] in FOREIGN]


def own_classes():
    """Yield the classes of the library and of the programs that are subclasses of foreign ones."""
    for package in map(importlib.import_module, ("idmatters_tf", "trainers")):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            parts = found.name.split(".")
            if not set(parts) & set(PRIVATE_ROOMS) and parts[-1] != "__main__":
                module = importlib.import_module(found.name)
                classes = (value for value in vars(module).values() if inspect.isclass(value))
                yield from (kind for kind in classes if kind.__module__ == found.name and foreign_bases(kind))


def violations(kind):
    """Return the private names of the foreign bases of a class that its source uses, unless it sets them itself."""
    names = set().union(*map(private_names, foreign_bases(kind)))
    tree = parse(kind)
    own = {
        node.attr
        for constructor in ast.walk(tree)
        if isinstance(constructor, ast.FunctionDef) and constructor.name == "__init__"
        for node in ast.walk(constructor)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return sorted(names & set(accessed(tree)) - own)


def test_private_modules_are_imported_in_two_rooms_only():
    lines = ((path, line) for path in SOURCES for line in path.read_text(encoding="utf-8").splitlines())
    assert [(path.name, line) for path, line in lines if PRIVATE_MODULES.search(line)] == []


def private_imports(path):
    """Yield the modules of other rooms of the library, or of the models, of which a file imports something private."""
    folder, room = path.relative_to(ROOT).parts[:2]
    own = "models" if folder == "models" else room
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        first, *parts = node.module.split(".") if isinstance(node, ast.ImportFrom) and node.module else [""]
        # Private modules beside the rooms are those that the rooms share.
        if first == "idmatters_tf" and parts and parts[0] != own:
            yield from (node.module for name in [*parts[1:], *(each.name for each in node.names)] if is_private(name))


def test_rooms_import_public_names_of_other_rooms():
    sources = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in ("idmatters_tf", "models", "trainers")]
    assert [(path.name, module) for path in sources for module in private_imports(path)] == []


def test_no_text_names_a_private_attribute():
    """As the argument of `getattr`, which ruff does not see."""
    nodes = [(path, node) for path in SOURCES for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    assert [(path.name, name) for path, node in nodes for name in texts_of(node) if is_private(name)] == []


def test_subclasses_use_and_override_public_names_only():
    found = {kind: names for kind in own_classes() if (names := violations(kind))}
    assert found == {}


class Reading(keras.layers.Dense):
    def __init__(self):
        super().__init__(1)
        self._own = 1

    def call(self, inputs):
        return getattr(self, "_kernel") * self._own, self._dtype_policy  # noqa: B009


def test_violations_are_found():
    assert violations(Reading) == ["_dtype_policy", "_kernel"]


@pytest.mark.parametrize("room", PRIVATE_ROOMS)
def test_the_private_rooms_name_their_modules(room):
    folder = pathlib.Path(ROOT, "idmatters_tf", room)
    modules = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    documented = re.findall(r"^(\w+) {2,}\S", importlib.import_module(f"idmatters_tf.{room}").__doc__, re.MULTILINE)
    assert sorted(documented) == sorted(modules - {"__init__"})
