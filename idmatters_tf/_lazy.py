"""Lazy import of package attributes, which are listed in the stub of the package (Scientific Python's SPEC 1)."""

import ast
import importlib
import pathlib
from collections.abc import Callable
from typing import Any


def lazy_attributes(package: str, path: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package whose attributes are imported on first use.

    Args:
        package: name of the package.
        path: its file `__init__.py`. The stub `__init__.pyi` beside it contains lines such as
            `from package.module import name as name`, or `from package import module as module`.
    """
    stub = ast.parse(pathlib.Path(path).with_suffix(".pyi").read_text("utf-8"))
    imports = [statement for statement in stub.body if isinstance(statement, ast.ImportFrom)]
    origins = {alias.name: str(statement.module) for statement in imports for alias in statement.names}

    def get(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if origins[name] == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(origins[name]), name)

    return get, lambda: sorted(origins), sorted(origins)
