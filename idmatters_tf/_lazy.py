"""Lazy import of package attributes."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_attributes(
    package: str, exported: Sequence[str], origins: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose attributes are imported on first use.

    Args:
        package: name of the package.
        exported: names of the attributes, as in `__all__`.
        origins: module that defines each attribute. Attributes without an entry are modules of the package.
    """
    origins = origins or {}

    def get(name: str) -> Any:
        if name in origins:
            return getattr(importlib.import_module(origins[name]), name)
        if name in exported:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted(exported)
