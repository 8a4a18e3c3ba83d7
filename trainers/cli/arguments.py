"""Argument parser of the programs, the errors that they report in one line, and commands in messages."""

import argparse
import difflib
import functools
import pathlib
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

import idmatters_tf

# Options of other programs and their names here.
_SYNONYMS = {
    "--batch": "--batch-size",
    "--epochs": "--steps",
    "--gpus": "--strategy",
    "--lr": "--learning-rate",
    "--output": "--out",
    "--wd": "--weight-decay",
}
# Removed options and the remedies.
REMOVED = {
    "--base-blocks": "Use idmatters_tf.scale_depth in Python.",
    "--branch-scale": "Use --initializer skipinit, or ResidualConv2D(branch_scale=...) in Python.",
    "--cluster-timeout": "Tasks wait 10 minutes for one another.",
    "--curvature-every": "Use the callback idmatters_tf.curvature.CurvatureMonitor in Python.",
    "--debug": "Use python -X dev -m to see tracebacks.",
    "--decay-epochs": "The learning rate decays every 2 epochs.",
    "--final-rate": "Use --schedule linear or airbench, which end at zero or at 7 % of the peak.",
    "--in-memory": "Use --dataset folder-in-memory.",
    "--lookahead": "Use --schedule airbench.",
    "--mirror": "Use --evaluate RUN, which also averages over mirror images.",
    "--nesterov": "Use --optimizer nesterov. Muon always has Nesterov momentum.",
    "--no-nesterov": "Use --optimizer momentum. Muon always has Nesterov momentum.",
    "--overwrite": "Remove the folder of the run.",
    "--parameter-servers": "List the parameter servers in TF_CONFIG.",
    "--size-steps": "Use pairs --train-sizes SIZE:STEP.",
    "--smallest-crop": "Use --augment large-crops, whose crops have at least 35 % of the area.",
    "--stem-strides": "Use --strides, whose first number is that of the first convolution.",
    "--val": "Use --held-out N, or a folder val/.",
    "--val-fraction": "Use --held-out N.",
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
        checks: action and check of each option by name. The check returns the value, or raises ValueError.
    """

    def __init__(self, prog: str, description: str | None, epilog: str | None = None):
        layout = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=32)
        super().__init__(prog, description=description, epilog=epilog, formatter_class=layout, allow_abbrev=False)
        self.checks: dict[str, tuple[argparse.Action, Callable[[object], object]]] = {}
        folder = pathlib.Path(idmatters_tf.__file__).resolve().parents[1]
        version = f"idmatters-tf {idmatters_tf.__version__} in {folder}"
        self.add_argument("--version", action="version", version=version, help="show version and location and exit")

    def parse(self, argv: Sequence[str] | None = None) -> dict[str, object]:
        """Return the options on the command line by name, without defaults. Exits with code 2 for invalid ones."""
        values = vars(self.parse_args(argv))
        for name in values.keys() & self.checks.keys():
            action, check = self.checks[name]
            try:
                values[name] = check(values[name])
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
    """Return the remedy for a removed option, or " Did you mean NAME?" for a known synonym or near name, or ""."""
    known = list(known)
    remedy = REMOVED.get(option_of(name))
    if remedy is not None:
        return f" It was removed. {remedy}"
    synonym = _SYNONYMS.get(name)
    near = [synonym] if synonym in known else difflib.get_close_matches(name, known, 1, 0.75)
    return f" Did you mean {near[0]}?" if near else ""


def option_of(name: str) -> str:
    """Return the option of a setting, such as --drop-steps."""
    return f"--{name.removeprefix('--').replace('_', '-')}"


def program_command(module: str, *words: object) -> str:
    """Return the shell command `python -m MODULE` with the words."""
    return shlex.join(["python", "-m", module, *map(str, words)])
