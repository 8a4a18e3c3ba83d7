"""Command lines whose errors are one line, and the two kinds of errors that programs report in one sentence.

The options of a command line follow from dataclasses: see `trainers.cli.settings`.
"""

import argparse
import difflib
import itertools
import pathlib
import re
import shutil
import textwrap
from typing import Any, NoReturn

import idmatters_tf
from trainers.cli.text import escape_controls, uses_console_scripts

_WIDTH = 110
# The columns that a remark beside a command needs at least; where there are fewer, it stands below.
_REMARK = 24


class UsageError(Exception):
    """Something the user asked for cannot be done as asked: exit code 2."""


class RunError(Exception):
    """Something failed while running: exit code 1.

    Args:
        reason: a sentence.
        advice: sentences about what to do. The other tasks of a cluster repeat them in place of their own.
    """

    def __init__(self, reason: str, advice: str = ""):
        super().__init__(f"{reason} {advice}".strip())
        self.reason, self.advice = reason, advice


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and whose options cannot be abbreviated."""

    def __init__(self, **kwargs: Any):
        if uses_console_scripts():
            for name in ("prog", "usage", "epilog"):
                if kwargs.get(name):
                    kwargs[name] = kwargs[name].replace("python -m trainers.", "idmatters-")
        super().__init__(formatter_class=_HelpFormatter, allow_abbrev=False, **kwargs)
        folder = pathlib.Path(idmatters_tf.__file__).resolve().parents[1]
        version = f"idmatters-tf {idmatters_tf.__version__} in {folder}"
        self.add_argument("--version", action="version", version=version, help="show the version and where it is")

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (--[^\s=]+)", message)
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            near = difflib.get_close_matches(unknown[1].replace("_", "-"), known, 1)
            message += f". Did you mean {near[0]}?" if near else ""
        self.exit(2, f"{self.prog}: error: {escape_controls(message)} (see --help)\n")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str):
        # As wide as the terminal, or as COLUMNS says, but no wider than is good to read.
        columns = shutil.get_terminal_size(fallback=(_WIDTH + 2, 24)).columns
        super().__init__(prog, max_help_position=32, width=min(columns - 2, _WIDTH))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Paragraphs are filled; of lines that are indented, commands stay whole and the remarks beside them do not."""
        filled = []
        lines = text.strip("\n").splitlines()
        for is_prose, together in itertools.groupby(lines, lambda line: bool(line) and not line[0].isspace()):
            pieces, wrap = list(together), _wrapped
            if is_prose:
                pieces, wrap = [" ".join(pieces)], _fill
            filled += [line for piece in pieces for line in wrap(piece, width)]
        return "\n".join(indent + line for line in filled)


def _wrapped(line: str, width: int) -> list[str]:
    found = re.fullmatch(r"(\s*\S.*?)\s{2,}(\S.*)", line)
    if len(line) <= width or found is None:
        return [line]
    column = found.start(2)
    if column + _REMARK <= width:
        return _fill(found[2], width, line[:column], " " * column)
    below = " " * (len(line) - len(line.lstrip()) + 4)
    return [found[1], *_fill(found[2], width, below, below)]


def _fill(text: str, width: int, first: str = "", others: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )
