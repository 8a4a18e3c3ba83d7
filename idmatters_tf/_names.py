"""Unique names for the entries of results by layer."""

from collections.abc import Container


def make_unique_name(name: str, names: Container[str]) -> str:
    """Return the name, or "name:2", "name:3" and so on if the names contain it."""
    unique, number = name, 1
    while unique in names:
        number += 1
        unique = f"{name}:{number}"
    return unique
