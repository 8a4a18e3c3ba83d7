"""Markdown tables."""

import re
from collections.abc import Iterable, Sequence
from typing import Any


def cell(value: Any) -> str:
    """Return a value as a table cell, with the characters that have a meaning in Markdown escaped."""
    return re.sub(r"([\\`*\[\]<|&])", r"\\\1", str(value))


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table. The cells contain Markdown."""
    first, *others = (f"| {' | '.join(cells)} |\n" for cells in (header, *lines))
    return "".join([first, f"|{'---|' * len(header)}\n", *others])


def as_words(value: Any) -> str:
    """Return a setting as text: list items separated by spaces, and "-" for None."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return "-" if value is None else str(value)
