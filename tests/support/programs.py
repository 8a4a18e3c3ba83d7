"""Execution of programs inside of the test process."""

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
    """Run a program's `main` as its command does.

    Returns:
        (code, message): the exit code and the output on standard error.
    """
    argv, stderr = list(map(str, arguments)), io.StringIO()
    # The program changes the handling of Ctrl-C at its end.
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
    """Run a script as `python PATH ARGUMENTS...` does, in this process. Return its standard output."""
    stdout = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [str(path), *map(str, arguments)]),
        mock.patch.object(sys, "path", [str(path.parent), *sys.path]),
        contextlib.redirect_stdout(stdout),
    ):
        runpy.run_path(str(path), run_name="__main__")
    return stdout.getvalue()


def run_here(name: str, *arguments: object, code: int | None = None) -> "subprocess.CompletedProcess[str]":
    """Return the result of the fixture `program` without the five seconds for the import of TensorFlow.

    If `code` is given, check that it is the exit code.
    """
    try:
        module = importlib.import_module(f"{name}.__main__")
    except ModuleNotFoundError:
        module = importlib.import_module(name)
    stdout = io.StringIO()
    with contextlib.redirect_stdout(stdout):
        found, stderr = run_in_process(module.main, *arguments)
    assert code in (None, found), f"exit code {found}: {stderr}"
    return subprocess.CompletedProcess([name, *map(str, arguments)], found, stdout.getvalue(), stderr)
