"""Functions of Keras that are replaced until the process ends.

A repair is made only in the versions of Keras that have the defect. A hook repairs nothing: Keras has no other place
for what it adds. All of them call the function of Keras for models of one replica.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import keras

Replacement = TypeVar("Replacement", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Change:
    """Replacement of a function of Keras.

    Attributes:
        owner: module or class of the function.
        name: name of the function.
        reason: defect of the function, or purpose of a hook.
        issue: number of the issue of Keras, 0 if none is known.
        versions: first and last minor version of Keras with the defect; None for a hook.
        replacement: `replacement(original, *args, **kwargs)`.
    """

    owner: Any
    name: str
    reason: str
    issue: int
    versions: tuple[str, str] | None
    replacement: Callable[..., Any]

    @property
    def path(self) -> str:
        """Name of the function with that of its class or module."""
        return f"{self.owner.__name__.rpartition('.')[2]}.{self.name}"

    @property
    def is_due(self) -> bool:
        """True for a hook, and for a repair of a defect of this version of Keras."""
        return self.versions is None or _minor(self.versions[0]) <= _minor(keras.__version__) <= _minor(
            self.versions[1]
        )


CHANGES: list[Change] = []
_made: set[tuple[Any, str]] = set()


def hook(owner: Any, name: str, reason: str) -> Callable[[Replacement], Replacement]:
    """Return a decorator for `replacement(original, *args, **kwargs)` of a function that has no defect."""
    return _register(owner, name, reason, 0, None)


def repairs(
    owner: Any, name: str, reason: str, issue: int = 0, versions: tuple[str, str] = ("3.13", "3.16")
) -> Callable[[Replacement], Replacement]:
    """Return a decorator for `replacement(original, *args, **kwargs)` of a function with a defect."""
    return _register(owner, name, reason, issue, versions)


def _register(owner, name, reason, issue, versions):
    def register(replacement):
        CHANGES.append(Change(owner, name, reason, issue, versions, replacement))
        return replacement

    return register


def make_changes() -> None:
    """Replace the functions, until the process ends. Further calls have no effect."""
    for change in CHANGES:
        if change.is_due and (change.owner, change.name) not in _made:
            _made.add((change.owner, change.name))
            setattr(change.owner, change.name, _bind(change.replacement, getattr(change.owner, change.name)))


def _bind(replacement, original):
    @functools.wraps(original)
    def replaced(*args, **kwargs):
        return replacement(original, *args, **kwargs)

    return replaced


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def describe_changes() -> str:
    """Return a table in Markdown of all changes, as a page prints it."""
    rows = ["| function | kind | defect, or purpose of a hook | versions |", "|---|---|---|---|"]
    for change in sorted(CHANGES, key=lambda change: change.path):
        kind, versions = ("hook", "") if change.versions is None else ("repair", " to ".join(change.versions))
        link = f" ([keras#{change.issue}](https://github.com/keras-team/keras/issues/{change.issue}))" * bool(
            change.issue
        )
        rows.append(f"| `{change.path}` | {kind} | {change.reason}{link} | {versions} |")
    return "\n".join(rows)
