"""Train on a cluster of local processes, to test distributed training on one machine."""

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
from typing import IO

from trainers.cli.arguments import Parser, UsageError
from trainers.cli.settings import add_options, parse, setting, with_defaults
from trainers.cli.startup import LAUNCHER_VARIABLE, run_program
from trainers.cli.text import CONSOLE_VARIABLE, uses_console_scripts
from trainers.cluster import token
from trainers.run.signals import SignalHandler

EXAMPLES = """
examples:
  python -m trainers.launch --workers 2 -- cifar --preset quick           two synchronous workers
  python -m trainers.launch --workers 2 --ps 1 -- cifar --preset quick    asynchronous, with one parameter server

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
class Settings:
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
    program = "python -m trainers.launch"
    usage = f"{program} [OPTIONS] -- PROGRAM ..."
    parser = Parser(prog=program, usage=usage, description=__doc__, epilog=EXAMPLES)
    add_options(parser, Settings)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...", help="cifar or imagenet, and its options"
    )
    return parser


def as_module(words: Sequence[str]) -> list[str]:
    """Return the command that runs a program of this package, from its module and options."""
    # -P: the current folder may contain packages of the same names.
    return [sys.executable, "-P", "-m", *words]


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with further variables, in which Python finds this package."""
    path = os.pathsep.join(filter(None, [PACKAGES, os.environ.get("PYTHONPATH")]))
    form = {CONSOLE_VARIABLE: "1"} if uses_console_scripts() else {}
    return {**os.environ, **variables, **form, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    typed = parse(parser(), argv)
    words = typed.pop("command")
    command = words[1:] if words[:1] == ["--"] else words
    settings = with_defaults(Settings, typed)
    if not command:
        raise UsageError("the training program is missing. Pass it after --, for example: -- cifar --preset quick")
    if command[0] not in PROGRAMS:
        raise UsageError(
            f"expected the name of a training program after --: {' or '.join(PROGRAMS)}. Received: {command[0]!r}"
        )
    jobs, control_port = local_cluster(settings.workers, settings.ps)
    secret = {token.VARIABLE: os.environ.get(token.VARIABLE) or token.generate()}
    processes = Processes()
    with processes.forwarding_signals():
        for job, addresses in jobs.items():
            for index in range(len(addresses)):
                config = {"cluster": jobs, "task": {"type": job, "index": index}}
                variables = {"TF_CONFIG": json.dumps(config), **secret}
                # The default control port may be used by another cluster on this machine.
                words = [f"trainers.{command[0]}", *command[1:], "--control-port", str(control_port)]
                processes.start(f"{job} {index}", as_module(words), variables)
        return processes.wait()


def local_cluster(workers: int, ps: int = 0) -> tuple[dict[str, list[str]], int]:
    """Return the jobs of a cluster on this machine at free ports, and a free control port."""
    names = ["chief"] * (ps > 0) + ["worker"] * workers + ["ps"] * ps
    with_sockets = [socket.create_server(("127.0.0.1", 0)) for _ in (*names, "control")]
    ports = [each.getsockname()[1] for each in with_sockets]
    for each in with_sockets:
        each.close()
    jobs: dict[str, list[str]] = {}
    for name, port in zip(names, ports[:-1], strict=True):
        jobs.setdefault(name, []).append(f"127.0.0.1:{port}")
    return jobs, ports[-1]


class Processes:
    """Child processes whose output is printed line by line with their names.

    They exit within seconds after the end of this process, even if it was killed: they read from a pipe whose writing
    end only this process holds, see `trainers.cli.startup`.
    """

    def __init__(self) -> None:
        self._watched, self._held = os.pipe()
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._readers: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        self._signals = SignalHandler(self._forward, patience=None)

    def start(self, name: str, command: Sequence[str], variables: Mapping[str, str]) -> None:
        """Start a process in its own process group, so that it receives signals from `forwarding_signals` only.

        Args:
            name: name of the process.
            command: command line of the process.
            variables: environment variables in addition to those of this process.
        """
        process = subprocess.Popen(
            command,
            env=child_environment({**variables, LAUNCHER_VARIABLE: str(self._watched)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            start_new_session=True,
            pass_fds=(self._watched,),
        )
        self._processes[name] = process
        reader = threading.Thread(target=self._copy, args=(name, process.stdout), daemon=True)
        reader.start()
        self._readers[name] = reader
        if self._signals.received is not None:
            # Received during the start of this process.
            process.send_signal(self._signals.received)

    def _copy(self, name: str, stream: IO[str]) -> None:
        for line in stream:
            # The processes continue if the output is closed.
            with self._lock, contextlib.suppress(OSError):
                print(f"[{name}] {line}", end="", flush=True)

    def forwarding_signals(self) -> SignalHandler:
        """Return a context in which SIGTERM and Ctrl-C are sent to all processes; the third signal kills them."""
        return self._signals

    def _forward(self, number: int, count: int) -> None:
        self.send(number if count < 3 else signal.SIGKILL)

    def send(self, number: int) -> None:
        """Send a signal to all running processes."""
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(number)

    def wait(self) -> int:
        """Wait for all processes, end the others if one fails, and return the first nonzero exit code, or 0."""
        failure, failed_at = 0, 0.0
        # Each process is polled: one that fails may not be the first.
        while None in (codes := [process.poll() for process in self._processes.values()]):
            for name, code in zip(self._processes, codes, strict=True):
                if code and not failure:
                    failure, failed_at = code, time.monotonic()
                    if not self._signals.received and len(codes) > 1:
                        print(f"{name} ended with exit code {code}; ending the others", file=sys.stderr, flush=True)
            if failure and not self._signals.received and time.monotonic() - failed_at > GRACE_SECONDS:
                self.send(signal.SIGKILL)
            time.sleep(0.05)
        for reader in self._readers.values():
            reader.join(timeout=5)
        code = failure or next(filter(None, codes), 0)
        # As in shells, 128 + signal instead of a negative number.
        return 128 - code if code < 0 else code


if __name__ == "__main__":
    run_program(main)
