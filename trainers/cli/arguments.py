"""Command lines: what each value may be, errors of one line, and which options were given explicitly."""

import argparse
import math
import pathlib
import sys

import idmatters_tf


class UsageError(Exception):
    """Something the user asked for cannot be done as asked: exit code 2."""


class RunError(Exception):
    """Something failed while running: exit code 1."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and which knows which options were given explicitly.

    Options are declared with their defaults, which `--help` shows; `parse` returns only what the user typed, so that
    presets and saved settings can stand between the two.
    """

    def __init__(self, **kwargs):
        # Under the name that it was started by: python -m trainers.NAME, or the console script idmatters-NAME.
        if pathlib.Path(sys.argv[0]).name.startswith("idmatters-"):
            for name in ("prog", "epilog"):
                if kwargs.get(name):
                    kwargs[name] = kwargs[name].replace("python -m trainers.", "idmatters-")
        super().__init__(formatter_class=_HelpFormatter, allow_abbrev=False, **kwargs)
        folder = pathlib.Path(idmatters_tf.__file__).resolve().parents[1]
        version = f"idmatters-tf {idmatters_tf.__version__} in {folder}"
        self.add_argument("--version", action="version", version=version, help="show the version and where it is")

    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")

    def parse(self, argv=None):
        """Returns (explicit, defaults): dicts by option name."""
        defaults = vars(self.parse_args([]))
        marker = object()
        explicit = vars(self.parse_args(argv, argparse.Namespace(**dict.fromkeys(defaults, marker))))
        return {name: value for name, value in explicit.items() if value is not marker}, defaults


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog):
        super().__init__(prog, max_help_position=32, width=110)

    def _get_help_string(self, action):
        # No "(default: None)" and the like: they say nothing.
        if action.default is None or isinstance(action.default, bool):
            return action.help
        if isinstance(action.default, list):
            return f"{action.help} (default: {' '.join(map(str, action.default))})"
        return super()._get_help_string(action)


def whole_number(low, high=2**63 - 1):
    """An argparse type: an integer from `low` to `high`."""

    def parse(text):
        try:
            value = int(text.replace("_", "").replace(",", ""))
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            bounds = f"of at least {low}" if high == 2**63 - 1 else f"from {low} to {high}"
            raise argparse.ArgumentTypeError(f"expected a whole number {bounds}, received {text!r}")
        return value

    return parse


def number(low, low_included=True, high=math.inf, high_included=True):
    """An argparse type: a finite number within bounds."""

    def parse(text):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        above = value >= low if low_included else value > low
        below = value <= high if high_included else value < high
        if not (math.isfinite(value) and above and below):
            bounds = f"{'at least' if low_included else 'above'} {low:g}"
            if high < math.inf:
                bounds += f" and {'at most' if high_included else 'below'} {high:g}"
            raise argparse.ArgumentTypeError(f"expected a number {bounds}, received {text!r}")
        return value

    return parse
