"""Programs run inside the test's own process, for what does not need one of their own."""

import contextlib
import io
import signal
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
