"""Run a training program or a script on a cluster of local processes, to test distributed training on one machine."""

import argparse
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import cast

from idmatters_tf.distribute.description import make_local_cluster
from trainers.cli.arguments import UsageError
from trainers.cli.settings import Parser, make_parser, setting, with_defaults
from trainers.cli.startup import print_message, run_program
from trainers.run.signals import SignalHandler

EXAMPLES = """
examples:
  python -m trainers.launch --workers 2 -- cifar --preset quick           two synchronous workers
  python -m trainers.launch --workers 2 --ps 1 -- cifar --preset quick    asynchronous, with one parameter server
  python -m trainers.launch --workers 2 train.py --epochs 5               a script with multi_worker_strategy()

The processes share the cores of this machine and the terminal: this is for testing, not for speed. Ctrl-C and SIGTERM
are forwarded to all processes, which save a checkpoint and exit. The same command resumes the run. If one process
fails, the others are ended.

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
    words = _as_command([word for word in cast(list[str], typed.pop("command")) if word != "--"])
    settings = with_defaults(LaunchSettings, typed)
    cluster = make_local_cluster(settings.workers, settings.ps)
    return run_together({name: (words, child_environment(variables)) for name, variables in cluster.items()})


def _as_command(words):
    """Return the command of a training program or of a script."""
    name = words[0] if words else "nothing"
    if name in PROGRAMS:
        return as_module([f"trainers.{name}", *words[1:]])
    if name.endswith(".py") and pathlib.Path(name).is_file():
        return [sys.executable, *words]
    if name.endswith(".py"):
        raise UsageError(f"there is no script {name}. Pass the path of an existing file.")
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


def run_together(commands: Mapping[str, tuple[Sequence[str], Mapping[str, str]]]) -> int:
    """Run processes until all have ended, and end the others if one fails. Return the first nonzero exit code, or 0.

    SIGTERM and Ctrl-C are forwarded to all processes; the third signal kills them.

    Args:
        commands: command and environment of each process by its name.
    """
    processes: dict[str, subprocess.Popen[bytes]] = {}

    def send(number: int, count: int = 1) -> None:
        for process in processes.values():
            process.send_signal(number if count < 3 else signal.SIGKILL)

    with SignalHandler(send, patience=None) as signals:
        for name, (command, environment) in commands.items():
            # In its own session, so that Ctrl-C reaches it once, through `send`.
            processes[name] = subprocess.Popen(command, env=environment, start_new_session=True)
        if signals.received is not None:
            # Received before all processes were started.
            send(signals.received)
        failure, failed_at, is_running = 0, 0.0, True
        while is_running:
            codes = {name: process.poll() for name, process in processes.items()}
            is_running = None in codes.values()
            for name, code in codes.items():
                if code and not failure:
                    failure, failed_at = code, time.monotonic()
                    if is_running and signals.received is None:
                        print_message(f"{name} ended with exit code {code}; ending the others")
            if failure and signals.received is None and time.monotonic() - failed_at > GRACE_SECONDS:
                send(signal.SIGKILL)
            time.sleep(0.05)
    # Shells report 128 + signal in place of a negative number.
    return 128 - failure if failure < 0 else failure


if __name__ == "__main__":
    run_program(main)
