"""Peers: other frameworks that run in separate processes on the same inputs.

PyTorch from PyPI installs Triton, which cannot be loaded in one process with TensorFlow. A peer is a module of
benchmarks/peers that calls `serve`. Requests and answers are one line of JSON each; arrays are exchanged as files in a
folder, the peer's first argument. A peer measures its own time, so that communication is not included.
"""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[1])}


class Peer(subprocess.Popen):
    """Process of a module in benchmarks/peers that answers requests."""

    def __init__(self, module: str, folder: str | os.PathLike, python: str):
        command = [python, "-m", f"peers.{module}", str(folder)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        super().__init__(command, env=ENVIRONMENT, text=True, **pipes)

    def ask(self, question: str, **arguments: Any) -> Any:
        """Send a request and return its answer."""
        print(json.dumps([question, arguments]), file=self.stdin, flush=True)
        answer = self.stdout.readline()
        if not answer:
            raise SystemExit(f"error: the peer exited with code {self.wait(timeout=60)}: {self.args}")
        return json.loads(answer)


def version(package: str, python: str) -> str | None:
    """Return the version of a package that is installed for an interpreter; None if it is not installed."""
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    done = subprocess.run([python, "-c", code], check=False, capture_output=True, text=True)
    return None if done.returncode else done.stdout.strip()


def add_option(parser) -> None:
    """Add the option that selects the interpreter of the peer."""
    explanation = "Python interpreter with PyTorch (default: this one)"
    parser.add_argument("--peer-python", default=sys.executable, metavar="FILE", help=explanation)


def serve(answers: Mapping[str, Callable[..., Any]]) -> None:
    """Answer requests until the connection is closed. All other output is sent to standard error."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        question, arguments = json.loads(line)
        print(json.dumps(answers[question](**arguments)), file=channel, flush=True)
