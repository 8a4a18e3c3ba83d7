"""Argument parser of the programs, the two kinds of errors that they report in one line, and commands in messages.

Options are defined by dataclasses, see `trainers.cli.settings`.
"""

import argparse
import difflib
import functools
import pathlib
import re
import shlex
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
        help_all: add `--help-all`; `--help` then omits the options in `hidden`.
        kwargs: see `argparse.ArgumentParser`.

    Attributes:
        hidden: options that only `--help-all` shows.
    """

    def __init__(self, help_all: bool = False, **kwargs: Any):
        # The width of the terminal, or COLUMNS, up to a readable maximum.
        width = min(shutil.get_terminal_size(fallback=(_WIDTH + 2, 24)).columns - 2, _WIDTH)
        layout = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=32, width=width)
        super().__init__(formatter_class=layout, allow_abbrev=False, **kwargs)
        self.hidden: list[argparse.Action] = []
        self._help_all = help_all
        if help_all:
            about = "show all options and exit"
            self.add_argument("--help-all", action=_HelpAll, nargs=0, default=argparse.SUPPRESS, help=about)
        folder = pathlib.Path(idmatters_tf.__file__).resolve().parents[1]
        version = f"idmatters-tf {idmatters_tf.__version__} in {folder}"
        self.add_argument("--version", action="version", version=version, help="show version and location and exit")

    def format_help(self) -> str:
        """Return the text of `--help`."""
        hidden = {action: action.help for action in self.hidden if self._help_all}
        for action in hidden:
            action.help = argparse.SUPPRESS
        text = super().format_help()
        for action, help_text in hidden.items():
            action.help = help_text
        return text

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


def program_command(module: str, *words: Any) -> str:
    """Return the shell command `python -m MODULE WORDS...`."""
    return shlex.join(["python", "-m", module, *map(str, words)])


class _HelpAll(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        parser.hidden.clear()
        parser.print_help()
        parser.exit()
