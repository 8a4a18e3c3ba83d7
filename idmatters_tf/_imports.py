"""Imports on first use, of attributes of packages and of optional packages."""

import ast
import importlib
import importlib.util
import pathlib
from collections.abc import Callable

# Optional packages and the extras of setup.cfg that install them.
EXTRAS = {
    "grain": "grain",
    "importlib_resources": "train",
    "jax": "jax",
    "matplotlib": "train",
    "tensorboard": "train",
    "tensorflow": "tensorflow",
    "tensorflow_datasets": "train",
}


def lazy_attributes(package: str, path: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package whose attributes are imported on first use.

    They are listed in its stub (Scientific Python's SPEC 1).

    Args:
        package: name of the package.
        path: its file `__init__.py`. The stub `__init__.pyi` beside it contains lines such as
            `from package.module import name as name`, or `from package import module as module`.
    """
    stub = ast.parse(pathlib.Path(path).with_suffix(".pyi").read_text("utf-8"))
    imports = [statement for statement in stub.body if isinstance(statement, ast.ImportFrom)]
    origins = {alias.name: str(statement.module) for statement in imports for alias in statement.names}

    def get(name: str) -> object:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if origins[name] == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(origins[name]), name)

    return get, lambda: sorted(origins), sorted(origins)


def require(*packages: str) -> None:
    """Raise ModuleNotFoundError, with the command that installs them, if packages of `EXTRAS` are not installed."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise ModuleNotFoundError(describe_missing(*missing), name=missing[0])


def describe_missing(*packages: str) -> str:
    """Return an error message with the command that installs packages of `EXTRAS`."""
    extras = ",".join(sorted({EXTRAS[package] for package in packages}))
    are = "is" if len(packages) == 1 else "are"
    return f"{' and '.join(packages)} {are} not installed. Run pip install '.[{extras}]' in the checkout."
