"""Text that is safe to print: escaped control characters, quoted commands."""

import os
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

# Environment variable that is set in processes started by a console script: they print commands in the same form.
CONSOLE_VARIABLE = "IDMATTERS_CONSOLE"


def escape_controls(text: str, keep: str = "") -> str:
    r"""Return the text with unprintable characters as escape sequences, such as `\x1b` or `\u202e`.

    Args:
        text: text from file names, config.json or another machine.
        keep: characters to keep, such as line breaks.
    """
    return "".join(letter if letter.isprintable() or letter in keep else ascii(letter)[1:-1] for letter in text)


def as_text(name: str) -> str:
    r"""Return a file name as Unicode text, with bytes that are not UTF-8 in the form `\xff`."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def join_command(words: Iterable[Any]) -> str:
    """Return words as a shell command; words with control characters use the form $'...' of bash and zsh."""
    return " ".join(_quote(str(word)) for word in words)


def uses_console_scripts() -> bool:
    """Return True if this process, or the program that started it, is a console script `idmatters-NAME`."""
    return pathlib.Path(sys.argv[0]).name.startswith("idmatters-") or CONSOLE_VARIABLE in os.environ


def program_command(module: str, *words: Any) -> str:
    """Return the shell command of a program, in the form in which this process was started.

    Args:
        module: module of the program, such as "trainers.cifar".
        words: arguments of the program.

    Returns:
        `idmatters-NAME ...` in a console script, `python -m trainers.NAME ...` otherwise.
    """
    start = [module.replace("trainers.", "idmatters-")] if uses_console_scripts() else ["python", "-m", module]
    return join_command([*start, *words])


def _quote(word: str) -> str:
    import shlex

    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_quote_letter, word))}'"


def _quote_letter(letter: str) -> str:
    if letter.isprintable():
        return f"\\{letter}" if letter in "'\\" else letter
    # Between $' and ' an escape sequence is a byte, not a character.
    return "".join(f"\\x{byte:02x}" for byte in letter.encode(errors="surrogateescape"))
