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
        replacement: `replacement(original, *args, **kwargs)`.
        issue: number of the issue of Keras, 0 if none is known.
        versions: first and last minor version of Keras with the defect; empty for a hook.
    """

    owner: Any
    name: str
    reason: str
    replacement: Callable[..., Any]
    issue: int = 0
    versions: tuple[str, ...] = ()

    @property
    def is_due(self) -> bool:
        """True for a hook, and for a repair of a defect of this version of Keras."""
        return not self.versions or _minor(self.versions[0]) <= _minor(keras.__version__) <= _minor(self.versions[1])


CHANGES: list[Change] = []
_made: set[tuple[Any, str]] = set()


def hook(owner: Any, name: str, reason: str) -> Callable[[Replacement], Replacement]:
    """Return a decorator for `replacement(original, *args, **kwargs)` of a function that has no defect."""
    return repairs(owner, name, reason, versions=())


def repairs(
    owner: Any, name: str, reason: str, issue: int = 0, versions: tuple[str, ...] = ("3.13", "3.16")
) -> Callable[[Replacement], Replacement]:
    """Return a decorator for `replacement(original, *args, **kwargs)` of a function with a defect."""

    def register(replacement):
        CHANGES.append(Change(owner, name, reason, replacement, issue, versions))
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


def _minor(version):
    return tuple(map(int, version.split(".")[:2]))


def describe_changes() -> str:
    """Return a table in Markdown of all changes, as a page prints it."""
    rows = []
    for change in CHANGES:
        path = f"{change.owner.__name__.rpartition('.')[2]}.{change.name}"
        link = f" ([keras#{change.issue}](https://github.com/keras-team/keras/issues/{change.issue}))"
        kind, reason = "repair" if change.versions else "hook", change.reason + link * bool(change.issue)
        rows.append(f"| `{path}` | {kind} | {reason} | {' to '.join(change.versions)} |")
    head = ["| function | kind | defect, or purpose of a hook | versions |", "|---|---|---|---|"]
    return "\n".join([*head, *sorted(rows)])
