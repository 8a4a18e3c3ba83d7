"""Runs the commands of a row again, each as a process of its own whose output is shown and kept."""

import contextlib
import hashlib
import os
import pathlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

from idmatters_tf._ownership import open_regular
from trainers.cli.arguments import RunError, UsageError
from trainers.launch import as_module, child_environment
from trainers.reproduce.rows import DataSet, Row

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Stopped(Exception):
    """The command was stopped by a signal, after it had saved; `code` is 128 + the signal."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


def log_of(folder: pathlib.Path) -> pathlib.Path:
    """Where the output of the commands that write into a folder is kept: beside it."""
    return folder.with_name(f"{folder.name}.log")


def words_of(command: str, folder: str | os.PathLike, data_dir: str | None) -> list[str]:
    """The words of a row's command, OUT and DATA replaced; without --data-dir where none is given.

    Args:
        command: as it is in the row.
        folder: for OUT, also in OUT/NAME.
        data_dir: for DATA, also in DATA/NAME; None: the program looks where TensorFlow Datasets keeps its data.
    """
    words = shlex.split(command)
    if data_dir is None:
        places = [place for place, word in enumerate(words) if word.split("/")[0] == "DATA"]
        words = [word for place, word in enumerate(words) if place not in places and place + 1 not in places]
    named = {"DATA": data_dir or "", "OUT": folder}

    def filled(word: str) -> str:
        first, *inside = word.split("/")
        return str(pathlib.Path(named[first], *inside)) if first in named else word

    return [filled(word) for word in words]


def shown(row: Row, folder: str = "OUT", data_dir: str | None = "DATA") -> list[str]:
    """The commands of a row as one types them.

    Args:
        row: whose commands; its tests are the last.
        folder: in place of OUT.
        data_dir: in place of DATA.
    """
    lines = []
    for command in row.commands:
        words = words_of(command, folder, data_dir)
        lines.append(shlex.join(["python", *(["-m"] if words[0].startswith("trainers.") else []), *words]))
    return lines + ([f"python -m pytest {' '.join(row.tests)}"] if row.tests else [])


def run_again(row: Row, folder: pathlib.Path, data_dir: str | None) -> None:
    """Runs the commands of a row, then its tests. What is finished already only says so: the programs resume.

    Args:
        row: with commands or tests.
        folder: for OUT.
        data_dir: for DATA, or None.

    Raises:
        UsageError: a command was refused, or needs a file that only a checkout has.
        RunError: a command ended otherwise than it did when the row was recorded.
        Stopped: it was stopped by a signal.
    """
    commands = [_process(words_of(command, folder, data_dir), row) for command in row.commands]
    if row.tests and (row.commands and not _in_checkout(row.tests[0])):
        print(f"{row.name}: its tests are left out: they are part of a checkout, not of the installed package")
    elif row.tests:
        commands.append(_process(["-m", "pytest", "-q", *row.tests], row))
    log = log_of(folder)
    log.parent.mkdir(parents=True, exist_ok=True)
    for number, words in enumerate(commands, start=1):
        code = _run(words, log)
        if code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
            raise Stopped(code)
        expected = row.exit_code if number == len(row.commands) else 0
        if code == expected:
            continue
        if code == 2:
            raise UsageError(f"{row.name}: the command was refused, for the reason above.")
        raise RunError(f"{row.name}: the command ended with exit code {code}, not {expected}. Its output is in {log}.")


def other_files(data: DataSet, folder: pathlib.Path) -> list[str]:
    """Which of the files in a folder, or one level below it, are not the official ones, in words.

    Args:
        data: names the official files and their checksums.
        folder: of the data sets.
    """
    lines = []
    folders = [folder, *(path for path in folder.glob("*") if path.is_dir())]
    # Other data sets may have single files of the same names.
    for holding in (each for each in folders if all((each / name).is_file() for name in data.files)):
        for name, expected in data.files.items():
            with open(holding / name, "rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != expected:
                lines.append(f"{holding / name} is not the official file: its SHA-256 is {found}, not {expected}")
    return lines


def _process(words: Sequence[str], row: Row) -> list[str]:
    """What is executed for the words of a command."""
    program = words[0]
    if program.startswith("trainers."):
        return as_module(words)
    files = [word for word in words if word.endswith(".py")]
    if not all(map(_in_checkout, files)):
        raise UsageError(f"{row.name} needs {files[0]}, which is part of a checkout, not of the installed package.")
    if program == "-m":
        return [sys.executable, *words]
    return [sys.executable, *(str(ROOT / word) if word in files else word for word in words)]


def _in_checkout(file: str) -> bool:
    return (ROOT / file).is_file()


def _run(words: Sequence[str], log: pathlib.Path) -> int:
    """Runs a process to its end; its output goes to ours and to the log. Returns its exit code."""
    tests = words[1:3] == ["-m", "pytest"]
    print(f"$ {shlex.join(['python', *words[1:]])}", flush=True)
    with (
        open(open_regular(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as kept,
        subprocess.Popen(
            words,
            env=child_environment({}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT if tests else None,
        ) as process,
        _handing_on(process),
    ):
        assert process.stdout is not None
        while chunk := os.read(process.stdout.fileno(), 1 << 16):
            kept.write(chunk)
            sys.stdout.buffer.write(chunk)
            sys.stdout.flush()
        code = process.wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _handing_on(process: subprocess.Popen) -> Iterator[None]:
    """Leaves Ctrl-C, which the process receives as well, and SIGTERM, which it does not, to the process."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
