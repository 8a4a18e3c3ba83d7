"""Argument parser of the programs, the errors that they report in one line, and commands in messages."""

import argparse
import difflib
import functools
import pathlib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import idmatters_tf

DEBUG = "--debug"
# Options of other programs and their names here.
_SYNONYMS = {
    "--batch": "--batch-size",
    "--epochs": "--steps",
    "--gpus": "--strategy",
    "--lr": "--learning-rate",
    "--output": "--out",
    "--wd": "--weight-decay",
}


class UsageError(Exception):
    """Invalid input from the user."""

    exit_code = 2


class RunError(Exception):
    """Failure while running: a reason and the remedy, as sentences."""

    exit_code = 1

    def __init__(self, reason: str, advice: str = ""):
        super().__init__(f"{reason} {advice}".strip())


class Parser(argparse.ArgumentParser):
    """Argument parser with one-line errors.

    Attributes:
        options: an `Option` of `trainers.cli.settings` for each of its arguments.
    """

    def __init__(self, **texts: str | None):
        layout: Any = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=32)
        arguments: dict[str, Any] = {"formatter_class": layout, "allow_abbrev": False, **texts}
        super().__init__(**arguments)
        self.options: dict[argparse.Action, Any] = {}
        folder = pathlib.Path(idmatters_tf.__file__).resolve().parents[1]
        version = f"idmatters-tf {idmatters_tf.__version__} in {folder}"
        self.add_argument("--version", action="version", version=version, help="show version and location and exit")

    def describe(self, usual: Mapping[str, Any] | None = None, only_common: bool = False) -> None:
        """Set the texts of `--help`, with the defaults `usual`, by name, where given.

        With `only_common`, the help shows common options only.
        """
        for action, option in self.options.items():
            text = option.describe((usual or {}).get(option.name, option.default))
            action.help = argparse.SUPPRESS if only_common and not option.common else text.replace("%", "%%")

    def parse(self, argv: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the options on the command line by name, without defaults. Exits with code 2 for invalid ones."""
        values = vars(self.parse_args(argv))
        for action, option in self.options.items():
            if action.dest in values:
                try:
                    values[action.dest] = option.check(values[action.dest])
                except ValueError as error:
                    self.error(str(argparse.ArgumentError(action, str(error))))
        return values

    def error(self, message: str) -> NoReturn:
        """Print one line to standard error and exit with code 2."""
        unknown = re.match(r"unrecognized arguments: (--[^\s=]+)", message)
        if unknown:
            hint = suggest(unknown[1].replace("_", "-"), self._option_string_actions)
            message += f".{hint}" if hint else ""
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean NAME?" for the known name that is a synonym of `name` or similar to it, or ""."""
    known = list(known)
    synonym = _SYNONYMS.get(name)
    near = [synonym] if synonym in known else difflib.get_close_matches(name, known, 1)
    return f" Did you mean {near[0]}?" if near else ""


def program_command(module: str, *words: Any) -> str:
    """Return the shell command `python -m MODULE` with the words."""
    return shlex.join(["python", "-m", module, *map(str, words)])
