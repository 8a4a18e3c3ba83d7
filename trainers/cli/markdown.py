"""Markdown tables and escaping of untrusted text such as class names, settings and run names."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from trainers.cli.text import escape_controls

# Letters, digits, spaces, commas and hyphens; underscores inside words; points only before digits.
_PLAIN = re.compile(r"(?!_)(?:\w|[ ,+-]|\.(?=\d))+(?<!_)")


def inline(text: str) -> str:
    """Return text for a Markdown line or table cell: plain text if that is safe, otherwise inline code."""
    text = escape_controls(text)
    if _PLAIN.fullmatch(text) and text == text.strip():
        return text
    longest = max(map(len, re.findall("`+", text)), default=0)
    marks, space = "`" * (longest + 1), " " if longest or text != text.strip() else ""
    # A vertical bar would end a cell even in code.
    return f"{marks}{space}{text}{space}{marks}".replace("|", "\\|")


def cell(value: Any) -> str:
    """Return a value as a table cell, with the characters that have a meaning in Markdown escaped."""
    return re.sub(r"([\\`*\[\]<|&])", r"\\\1", escape_controls(str(value)))


def fence(text: str) -> str:
    """Return lines of code in a fenced block, with fences longer than any in the code."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{escape_controls(text, keep=chr(10))}\n{fence}"


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table. The cells contain Markdown."""
    first, *others = (f"| {' | '.join(cells)} |\n" for cells in (header, *lines))
    return "".join([first, f"|{'---|' * len(header)}\n", *others])


def as_words(value: Any) -> str:
    """Return a setting as text: list items separated by spaces, and "-" for None."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return "-" if value is None else str(value)
