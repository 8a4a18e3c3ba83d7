"""Execution of the commands of a row in separate processes, whose output is shown and logged."""

import contextlib
import hashlib
import os
import pathlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

from trainers.cli.arguments import RunError, UsageError
from trainers.launch import as_module, child_environment
from trainers.reproduce.rows import DataSet, Row

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Stopped(Exception):
    """Exception for a command that a signal stopped after it had saved; `code` is 128 + the signal."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


def get_log_path(folder: pathlib.Path) -> pathlib.Path:
    """Return the path of the log of the commands that write to a folder."""
    return folder.with_name(f"{folder.name}.log")


def expand_command(command: str, folder: str | os.PathLike, data_dir: str | None) -> list[str]:
    """Split a row's command into words, with OUT and DATA replaced.

    Args:
        command: command of the row.
        folder: replacement of OUT, also in OUT/NAME.
        data_dir: replacement of DATA, also in DATA/NAME; None removes --data-dir, so that the program uses the folder
            of TensorFlow Datasets.
    """
    words = shlex.split(command)
    if data_dir is None:
        places = [place for place, word in enumerate(words) if word.split("/")[0] == "DATA"]
        words = [word for place, word in enumerate(words) if place not in places and place + 1 not in places]
    named = {"DATA": data_dir or "", "OUT": folder}

    def fill(word: str) -> str:
        first, *inside = word.split("/")
        return str(pathlib.Path(named[first], *inside)) if first in named else word

    return [fill(word) for word in words]


def format_commands(row: Row, folder: str = "OUT", data_dir: str | None = "DATA") -> list[str]:
    """Return the command lines of a row.

    Args:
        row: row of the ledger; its tests are the last command.
        folder: replacement of OUT.
        data_dir: replacement of DATA.
    """
    lines = []
    for command in row.commands:
        words = expand_command(command, folder, data_dir)
        lines.append(shlex.join(["python", *(["-m"] if words[0].startswith("trainers.") else []), *words]))
    return lines + ([f"python -m pytest {' '.join(row.tests)}"] if row.tests else [])


def run_again(row: Row, folder: pathlib.Path, data_dir: str | None) -> None:
    """Run the commands of a row, then its tests. The programs resume stopped runs and skip finished ones.

    Args:
        row: row with commands or tests.
        folder: replacement of OUT.
        data_dir: replacement of DATA, or None.

    Raises:
        UsageError: a command was rejected, or requires a file of a checkout.
        RunError: a command ended with a different exit code than the recorded one.
        Stopped: a command was stopped by a signal.
    """
    commands = [_process(expand_command(command, folder, data_dir), row) for command in row.commands]
    if row.tests and (row.commands and not _in_checkout(row.tests[0])):
        print(f"{row.name}: skipped its tests, which require a checkout")
    elif row.tests:
        commands.append(_process(["-m", "pytest", "-q", *row.tests], row))
    log = get_log_path(folder)
    log.parent.mkdir(parents=True, exist_ok=True)
    for number, words in enumerate(commands, start=1):
        code = _run(words, log)
        if code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
            raise Stopped(code)
        expected = row.exit_code if number == len(row.commands) else 0
        if code == expected:
            continue
        if code == 2:
            raise UsageError(f"{row.name}: the command was rejected, see the message above.")
        raise RunError(f"{row.name}: the command ended with exit code {code}, not {expected}. Its output is in {log}.")


def other_files(data: DataSet, folder: pathlib.Path) -> list[str]:
    """Describe the files in a folder, or one level below it, that differ from the official files.

    Args:
        data: official files and their checksums.
        folder: folder of the data sets.
    """
    lines = []
    folders = [folder, *(path for path in folder.glob("*") if path.is_dir())]
    # Other data sets may have some files of the same names, but not all.
    for holding in (each for each in folders if all((each / name).is_file() for name in data.files)):
        for name, expected in data.files.items():
            with open(holding / name, "rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != expected:
                lines.append(f"{holding / name} is not the official file: its SHA-256 is {found}, not {expected}")
    return lines


def _process(words: Sequence[str], row: Row) -> list[str]:
    """Return the process arguments for the words of a command."""
    program = words[0]
    if program.startswith("trainers."):
        return as_module(words)
    files = [word for word in words if word.endswith(".py")]
    if not all(map(_in_checkout, files)):
        raise UsageError(f"{row.name} requires {files[0]}, which only a checkout contains.")
    if program == "-m":
        return [sys.executable, *words]
    return [sys.executable, *(str(ROOT / word) if word in files else word for word in words)]


def _in_checkout(file: str) -> bool:
    return (ROOT / file).is_file()


def _run(words: Sequence[str], log: pathlib.Path) -> int:
    """Run a process, and copy its output to standard output and the log. Returns its exit code."""
    tests = words[1:3] == ["-m", "pytest"]
    print(f"$ {shlex.join(['python', *words[1:]])}", flush=True)
    with (
        open(log, "ab") as kept,
        subprocess.Popen(
            words,
            env=child_environment({}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT if tests else None,
        ) as process,
        _forward_signals(process),
    ):
        assert process.stdout is not None
        while chunk := os.read(process.stdout.fileno(), 1 << 16):
            kept.write(chunk)
            sys.stdout.buffer.write(chunk)
            sys.stdout.flush()
        code = process.wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _forward_signals(process: subprocess.Popen) -> Iterator[None]:
    """Forward SIGTERM to the process, and ignore Ctrl-C, which the process also receives."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
