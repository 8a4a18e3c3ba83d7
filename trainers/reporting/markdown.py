"""Markdown of text of unknown origin, such as class names, settings and names of runs, and its tables."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from trainers.cli.text import escape_controls

# Letters, digits, spaces and hyphens, underscores inside of words, and points only in front of digits.
_PLAIN = re.compile(r"(?!_)(?:\w|[ ,+-]|\.(?=\d))+(?<!_)")


def inline(text: str) -> str:
    """Return text as one piece of a Markdown line or of a table's cell: plain where that is safe, else as code."""
    text = escape_controls(text)
    if _PLAIN.fullmatch(text) and text == text.strip():
        return text
    longest = max(map(len, re.findall("`+", text)), default=0)
    marks, space = "`" * (longest + 1), " " if longest or text != text.strip() else ""
    # A vertical bar would end a cell even in code.
    return f"{marks}{space}{text}{space}{marks}".replace("|", "\\|")


def cell(value: Any) -> str:
    """Return a value as a cell of a table that is read as text as well: whatever would leave the cell is escaped."""
    return re.sub(r"([\\`*\[\]<|&])", r"\\\1", escape_controls(str(value)))


def fenced(text: str) -> str:
    """Return lines of code between fences that none of them can close."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{escape_controls(text, keep=chr(10))}\n{fence}"


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown already."""
    first, *others = (f"| {' | '.join(cells)} |\n" for cells in (header, *lines))
    return "".join([first, f"|{'---|' * len(header)}\n", *others])


def as_words(value: Any) -> str:
    """Return a setting as text: the items of a list separated by spaces, "-" for None."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return "-" if value is None else str(value)
