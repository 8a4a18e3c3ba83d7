"""Unique names for the entries of dicts by layer or callback."""

from collections.abc import Container


def make_unique_name(name: str, names: Container[str], separator: str = ":") -> str:
    """Return the name, or "name:2", "name:3" and so on if the names contain it."""
    unique = name
    number = 1
    while unique in names:
        number += 1
        unique = f"{name}{separator}{number}"
    return unique
