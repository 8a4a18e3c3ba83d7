"""Run a training program or a script on a cluster of local processes, to test distributed training on one machine."""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from trainers.cli.arguments import Parser, UsageError
from trainers.cli.settings import make_parser, setting, with_defaults
from trainers.cli.startup import print_lines, run_program
from trainers.run.signals import SignalHandler

EXAMPLES = """
examples:
  python -m trainers.launch --workers 2 -- cifar --preset quick           two synchronous workers
  python -m trainers.launch --workers 2 --ps 1 -- cifar --preset quick    asynchronous, with one parameter server
  python -m trainers.launch --workers 2 train.py --epochs 5               a script with multi_worker_strategy()

The processes share the cores of this machine: this is for testing, not for speed. Ctrl-C and SIGTERM are forwarded to
all processes, which save a checkpoint and exit. The same command resumes the run. If one process fails, the others are
ended.

exit codes: 0 done; 1 failed while running; 2 bad input; 130, 143 stopped by Ctrl-C, SIGTERM after saving
"""
PROGRAMS = ("cifar", "imagenet")
# Number of seconds in which the other processes may exit on their own after one has failed.
GRACE_SECONDS = 20.0
PACKAGES = str(pathlib.Path(__file__).resolve().parents[1])


@dataclasses.dataclass(frozen=True)
class LaunchSettings:
    """Settings of the launcher."""

    workers: int = setting(2, help="number of processes that compute gradients", at_least=1, at_most=256)
    ps: int = setting(
        0,
        help="number of parameter servers; with any, training is asynchronous, with one more process as coordinator",
        at_least=0,
        at_most=256,
    )
    debug: bool = setting(False, help="show tracebacks")


def parser() -> Parser:
    """Return the command line of this program."""
    parser = make_parser("trainers.launch", __doc__, EXAMPLES, LaunchSettings)
    parser.usage = f"{parser.prog} [OPTIONS] -- PROGRAM|SCRIPT.py ..."
    help_text = "cifar or imagenet, or the path of a script, and its options"
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...", help=help_text)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    typed = parser().parse(argv)
    command = [word for word in typed.pop("command") if word != "--"]
    settings = with_defaults(LaunchSettings, typed)
    words = _as_command(command)
    jobs = local_cluster(settings.workers, settings.ps)
    processes = Processes()
    with processes.signals:
        for job, addresses in jobs.items():
            for index in range(len(addresses)):
                config = json.dumps({"cluster": jobs, "task": {"type": job, "index": index}})
                processes.start(f"{job} {index}", words, child_environment({"TF_CONFIG": config}))
        return processes.wait()


def _as_command(words):
    """Return the command of a training program or of a script."""
    name = words[0] if words else "nothing"
    if name in PROGRAMS:
        return as_module([f"trainers.{name}", *words[1:]])
    if name.endswith(".py") and pathlib.Path(name).is_file():
        return [sys.executable, *words]
    raise UsageError(
        f"expected a training program, {' or '.join(PROGRAMS)}, or the path of a script, for example: -- cifar "
        f"--preset quick. Received: {name}"
    )


def as_module(words: Sequence[str]) -> list[str]:
    """Return the command that runs a program of this package, from its module and options."""
    # -P: the current folder may contain packages of the same names.
    return [sys.executable, "-P", "-m", *words]


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with further variables, in which Python finds this package."""
    path = os.pathsep.join(filter(None, [PACKAGES, os.environ.get("PYTHONPATH")]))
    return {**os.environ, **variables, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def local_cluster(workers: int, ps: int = 0) -> dict[str, list[str]]:
    """Return the jobs of a cluster on this machine at free ports."""
    names = ["chief"] * (ps > 0) + ["worker"] * workers + ["ps"] * ps
    jobs: dict[str, list[str]] = {}
    with contextlib.ExitStack() as stack:
        for name in names:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            jobs.setdefault(name, []).append(f"127.0.0.1:{listener.getsockname()[1]}")
    return jobs


class Processes:
    """Child processes whose output is printed line by line with their names.

    Attributes:
        signals: context in which SIGTERM and Ctrl-C are forwarded to all processes; the third signal kills them.
    """

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._readers: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.signals = SignalHandler(self._forward, patience=None)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a process in its own session, so that Ctrl-C reaches it once, through `signals`."""
        options: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        options |= {"errors": "backslashreplace", "start_new_session": True}
        process = subprocess.Popen(command, env=environment, **options)
        self._processes[name] = process
        reader = threading.Thread(target=self._copy, args=(name, process.stdout), daemon=True)
        reader.start()
        self._readers.append(reader)
        if self.signals.received is not None:
            # Received during the start of this process.
            process.send_signal(self.signals.received)

    def wait(self) -> int:
        """Wait for all processes, end the others if one fails, and return the first nonzero exit code, or 0."""
        failure, failed_at = 0, 0.0
        # Each process is polled: one that fails may not be the first.
        while None in (codes := [process.poll() for process in self._processes.values()]):
            for name, code in zip(self._processes, codes, strict=True):
                if code and not failure:
                    failure, failed_at = code, time.monotonic()
                    if not self.signals.received and len(codes) > 1:
                        print(f"{name} ended with exit code {code}; ending the others", file=sys.stderr, flush=True)
            if failure and not self.signals.received and time.monotonic() - failed_at > GRACE_SECONDS:
                self._send(signal.SIGKILL)
            time.sleep(0.05)
        for reader in self._readers:
            reader.join(timeout=5)
        code = failure or next(filter(None, codes), 0)
        # Shells report 128 + signal in place of a negative number.
        return 128 - code if code < 0 else code

    def _forward(self, number: int, count: int) -> None:
        self._send(number if count < 3 else signal.SIGKILL)

    def _send(self, number: int) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(number)

    def _copy(self, name: str, stream: IO[str]) -> None:
        for line in stream:
            with self._lock:
                print_lines(f"[{name}] {line.removesuffix(chr(10))}")


if __name__ == "__main__":
    run_program(main)
