"""Programs run inside the test's own process, for what does not need one of their own."""

import contextlib
import importlib
import io
import pathlib
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from unittest import mock

import pytest

from trainers.cli.startup import run_program


def run_in_process(main: Callable[[Sequence[str]], int], *arguments: object) -> tuple[int, str]:
    """Runs a program's `main` as its command would.

    Returns:
        (code, message): the exit code, and what was written to standard error.
    """
    argv, stderr = list(map(str, arguments)), io.StringIO()
    # What a program makes of Ctrl-C at its end is not for the tests that follow.
    before = signal.getsignal(signal.SIGINT)
    try:
        with (
            mock.patch.object(sys, "argv", ["program", *argv]),
            contextlib.redirect_stderr(stderr),
            pytest.raises(SystemExit) as ended,
        ):
            run_program(main)
    finally:
        signal.signal(signal.SIGINT, before)
    return int(ended.value.code or 0), stderr.getvalue()


def run_script(path: pathlib.Path, *arguments: object) -> str:
    """Runs a script as `python PATH ARGUMENTS...` would, in this process. Returns its standard output."""
    stdout = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [str(path), *map(str, arguments)]),
        mock.patch.object(sys, "path", [str(path.parent), *sys.path]),
        contextlib.redirect_stdout(stdout),
    ):
        runpy.run_path(str(path), run_name="__main__")
    return stdout.getvalue()


def run_here(name: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """What the fixture `program` returns, without the five seconds in which a process imports TensorFlow."""
    try:
        module = importlib.import_module(f"{name}.__main__")
    except ModuleNotFoundError:
        module = importlib.import_module(name)
    stdout = io.StringIO()
    with contextlib.redirect_stdout(stdout):
        code, stderr = run_in_process(module.main, *arguments)
    return subprocess.CompletedProcess([name, *map(str, arguments)], code, stdout.getvalue(), stderr)
