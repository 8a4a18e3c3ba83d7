"""Temporary replacement of attributes of other libraries."""

import threading
from collections.abc import Iterable
from typing import TypeAlias

# Object, name of its attribute, and value of it.
Replacement: TypeAlias = tuple[object, str, object]


class Patch:
    """Context in which attributes are replaced. It may be entered several times, also by several threads.

    The first user replaces the attributes and the last one restores them. (Overlapping contexts of `unittest.mock` in
    two threads would leave a replacement behind.)

    Args:
        *replacements: triples (object, name of the attribute, replacement).
    """

    def __init__(self, *replacements: Replacement):
        self._replacements = replacements
        self._originals: list[Replacement] = []
        self._lock = threading.Lock()
        self._users = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._originals = [(owner, name, getattr(owner, name)) for owner, name, _ in self._replacements]
                _set(self._replacements)
            self._users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                _set(self._originals)


def _set(values: Iterable[Replacement]) -> None:
    for owner, name, value in values:
        setattr(owner, name, value)
