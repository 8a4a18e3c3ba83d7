"""Argument parser of the programs, the errors that they report in one line, and commands in messages."""

import argparse
import difflib
import functools
import pathlib
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import idmatters_tf


class UsageError(Exception):
    """Invalid input from the user."""

    exit_code = 2


class RunError(Exception):
    """Failure while running: a reason and the remedy, as sentences."""

    exit_code = 1

    def __init__(self, reason: str, advice: str = ""):
        super().__init__(f"{reason} {advice}".strip())


class Parser(argparse.ArgumentParser):
    """Argument parser with one-line errors. With `help_all`, `--help-all` also shows the options in `hidden`."""

    def __init__(self, help_all: bool = False, **texts: str | None):
        # The width of the terminal, or COLUMNS, up to a readable maximum.
        width = min(shutil.get_terminal_size(fallback=(112, 24)).columns - 2, 110)
        layout: Any = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=32, width=width)
        named: dict[str, Any] = {name: _name_script(text or "") for name, text in texts.items()}
        super().__init__(formatter_class=layout, allow_abbrev=False, **named)
        self.hidden: list[argparse.Action] = []
        self._hides = help_all
        if help_all:
            self.add_argument("--help-all", action="help", help="show all options and exit")
        folder = pathlib.Path(idmatters_tf.__file__).resolve().parents[1]
        version = f"idmatters-tf {idmatters_tf.__version__} in {folder}"
        self.add_argument("--version", action="version", version=version, help="show version and location and exit")

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Parse words, by default those of the command line."""
        words = list(sys.argv[1:] if args is None else args)
        self._hides = self._hides and "--help-all" not in words
        for word in words:
            # argparse of Python 3.11 fails on these words.
            if re.fullmatch("--[^=]+=--", word):
                self.error(f"argument {word[:-3]}: expected a value, received '--'")
        return super().parse_known_args(words, namespace)

    def format_help(self) -> str:
        """Return the text of `--help`."""
        shown = {action: action.help for action in self.hidden if self._hides}
        for action in shown:
            action.help = argparse.SUPPRESS
        text = super().format_help()
        for action, help_text in shown.items():
            action.help = help_text
        return text

    def error(self, message: str) -> NoReturn:
        """Print one line to standard error and exit with code 2."""
        unknown = re.match(r"unrecognized arguments: (--[^\s=]+)", message)
        if unknown:
            hint = suggest(unknown[1].replace("_", "-"), self._option_string_actions)
            message += f".{hint}" if hint else ""
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean NAME?" for the known name closest to `name`, or "" if none is similar."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f" Did you mean {near[0]}?" if near else ""


def program_command(module: str, *words: Any) -> str:
    """Return the shell command that runs a program with the words: `python -m MODULE`, or a console script."""
    return _name_script(shlex.join(["python", "-m", module, *map(str, words)]))


def _name_script(text: str) -> str:
    """Return a text with the names of console scripts in its commands, in processes of console scripts."""
    is_script = pathlib.Path(sys.argv[0]).name.startswith("idmatters-")
    return text.replace("python -m trainers.", "idmatters-") if is_script else text
