"""Argument parser of the programs, and the two kinds of errors that they report in one line.

Options are defined by dataclasses, see `trainers.cli.settings`.
"""

import argparse
import difflib
import functools
import pathlib
import re
import shutil
from collections.abc import Iterable
from typing import Any, NoReturn

import idmatters_tf

_WIDTH = 110


class UsageError(Exception):
    """Invalid input from the user: exit code 2."""


class RunError(Exception):
    """Failure while running: exit code 1.

    Args:
        reason: a sentence.
        advice: sentences with the remedy.
    """

    def __init__(self, reason: str, advice: str = ""):
        super().__init__(f"{reason} {advice}".strip())


class Parser(argparse.ArgumentParser):
    """Argument parser with one-line errors, without abbreviations of options.

    Args:
        help_all: add `--help-all`; `--help` then omits the options passed to `hide`.
        kwargs: see `argparse.ArgumentParser`.
    """

    def __init__(self, help_all: bool = False, **kwargs: Any):
        # The width of the terminal, or COLUMNS, up to a readable maximum.
        width = min(shutil.get_terminal_size(fallback=(_WIDTH + 2, 24)).columns - 2, _WIDTH)
        layout = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=32, width=width)
        super().__init__(formatter_class=layout, allow_abbrev=False, **kwargs)
        self._hidden: list[argparse.Action] = []
        if help_all:
            about = "show all options and exit"
            self.add_argument("--help-all", action=_HelpAll, nargs=0, default=argparse.SUPPRESS, help=about)
        folder = pathlib.Path(idmatters_tf.__file__).resolve().parents[1]
        version = f"idmatters-tf {idmatters_tf.__version__} in {folder}"
        self.add_argument("--version", action="version", version=version, help="show version and location and exit")
        self._shows_all = not help_all

    def hide(self, action: argparse.Action) -> None:
        """Omit an option from `--help` if there is `--help-all`."""
        self._hidden.append(action)

    def format_help(self) -> str:
        """Return the text of `--help`."""
        hidden = [] if self._shows_all else self._hidden
        texts = [action.help for action in hidden]
        for action in hidden:
            action.help = argparse.SUPPRESS
        try:
            return super().format_help()
        finally:
            for action, text in zip(hidden, texts, strict=True):
                action.help = text

    def format_help_all(self) -> str:
        """Return the text of `--help-all`."""
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print one line to standard error and exit with code 2."""
        unknown = re.match(r"unrecognized arguments: (--[^\s=]+)", message)
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            hint = suggest(unknown[1].replace("_", "-"), known)
            message += f".{hint}" if hint else ""
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean NAME?" for the known name closest to `name`, or "" if none is similar."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f" Did you mean {near[0]}?" if near else ""


class _HelpAll(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        print(parser.format_help_all(), end="")
        parser.exit()
