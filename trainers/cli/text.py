"""Commands and text that programs print."""

import shlex
from collections.abc import Iterable
from typing import Any


def as_text(name: str) -> str:
    r"""Return a file name as Unicode text, with bytes that are not UTF-8 in the form `\xff`."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def join_command(words: Iterable[Any]) -> str:
    """Return words as a shell command."""
    return shlex.join(map(str, words))


def program_command(module: str, *words: Any) -> str:
    """Return the shell command `python -m MODULE WORDS...`."""
    return join_command(["python", "-m", module, *words])
