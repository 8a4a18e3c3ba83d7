"""Peers: other frameworks, each in a process of its own, on the same inputs, measured in turn with ours.

PyTorch from PyPI brings Triton, which cannot be loaded in one process with TensorFlow. A peer is a module of
benchmarks/peers that calls `serve`. Requests and answers are one line of JSON each; arrays travel as files. A peer
measures its own time, so that asking is not part of it.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

BENCHMARKS = pathlib.Path(__file__).resolve().parents[1]


class Peer:
    """A process that answers requests.

    Args:
        module: of benchmarks/peers.
        folder: where the two exchange arrays; its path is the peer's first argument.
        python: the interpreter to run it with.
    """

    def __init__(self, module: str, folder: str | os.PathLike, python: str = sys.executable):
        self._process = subprocess.Popen(
            [python, "-m", f"peers.{module}", str(folder)],
            env={**os.environ, "PYTHONPATH": str(BENCHMARKS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._module = module

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(timeout=60)

    def ask(self, question: str, **arguments: Any) -> Any:
        """Sends a request and waits for its answer."""
        print(json.dumps([question, arguments]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"error: the peer {self._module} ended with exit code {self._process.wait(timeout=60)}")
        return json.loads(answer)


def installed(package: str, python: str = sys.executable) -> bool:
    """Whether an interpreter has a package; nothing is imported here."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def version(package: str, python: str = sys.executable) -> str:
    """The version of a package in another interpreter."""
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def add_option(parser) -> None:
    """Adds the choice of the interpreter that runs the peer."""
    parser.add_argument(
        "--peer-python",
        default=sys.executable,
        metavar="FILE",
        help="Python interpreter of the environment with PyTorch (default: this one)",
    )


def serve(answers: Mapping[str, Callable[..., Any]]) -> None:
    """Answers requests until the other side closes; whatever else is printed goes to standard error."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        question, arguments = json.loads(line)
        print(json.dumps(answers[question](**arguments)), file=channel, flush=True)
