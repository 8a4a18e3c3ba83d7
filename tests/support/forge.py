"""Processes that are forked after all imports, so that a training costs one second of a core instead of ten.

The program `python -m tests.support.forge` imports the modules of the training programs, computes nothing, and forks a
process for each line of JSON on standard input. `Forge` is its client.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from tests.conftest import ROOT

# Modules that `trainers.cifar` imports.
MODULES = ("keras", "matplotlib.pyplot", "tensorflow", "tensorboard.plugins.hparams.api", "trainers.cifar")
MODULES += (
    "idmatters_tf.curvature",
    "idmatters_tf.data.augment",
    "idmatters_tf.data.batches",
    "idmatters_tf.models.cifar",
)
MODULES += ("trainers.cluster.strategy", "trainers.run.events", "trainers.run.figures", "trainers.training.build")
MODULES += ("trainers.training.export", "trainers.training.session", "trainers.training.synchronous")
MODULES += ("trainers.training.train",)

# Time limit in seconds on a busy machine.
PATIENCE = 900.0


class Forked:
    """A forked process of a `Forge`, which writes both outputs to the file `log`."""

    def __init__(self, forge: "Forge", pid: int, log: pathlib.Path):
        self.pid, self.log, self._forge = pid, log, forge
        self.code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative after a signal, or None while the process runs."""
        self.code = self._forge.code(self.pid)
        return self.code

    def send(self, number: int) -> None:
        """Send a signal if the process still runs."""
        if self.poll() is None:
            # The process may have ended.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the end and return the exit code. Kill the process and raise TimeoutError if it does not end."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.send(signal.SIGKILL)
                raise TimeoutError(f"a process has not ended after {timeout:.0f} seconds: {self.said()[-2000:]}")
            time.sleep(0.02)
        assert self.code is not None
        return self.code

    def said(self) -> str:
        """Return the output so far."""
        return self.log.read_text(errors="backslashreplace") if self.log.exists() else ""


class Forge:
    """Source of processes that have imported all modules. All of them end with this process.

    Args:
        log: file for standard error during the imports.
    """

    def __init__(self, log: pathlib.Path) -> None:
        command = [sys.executable, "-m", "tests.support.forge"]
        with open(log, "wb") as stream:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream
            )
        self._codes: dict[int, int] = {}
        self._rest = b""
        assert self._read(PATIENCE) == {"ready": True}, log.read_text()

    def start(
        self, words: list[str], log: pathlib.Path, env: Mapping[str, str], errors: pathlib.Path | None = None
    ) -> Forked:
        """Start a process `python -m WORDS`. `errors` is a separate file for standard error."""
        assert self._process.stdin is not None
        request = {"words": words, "log": str(log), "errors": str(errors or log), "env": dict(env)}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        while (answer := self._read(PATIENCE)) is not None and "pid" not in answer:
            pass
        assert answer is not None, "the forge does not answer"
        return Forked(self, answer["pid"], log)

    def code(self, pid: int) -> int | None:
        """Return the exit code of a process, or None while it runs."""
        while self._read(0) is not None:
            pass
        return self._codes.get(pid)

    def _read(self, timeout: float) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        if b"\n" not in self._rest:
            if not select.select([self._process.stdout], [], [], timeout)[0]:
                return None
            self._rest += os.read(self._process.stdout.fileno(), 1 << 16)
        line, newline, rest = self._rest.partition(b"\n")
        if not newline:
            return None
        self._rest = rest
        answer = json.loads(line)
        if "ended" in answer:
            self._codes[answer["ended"]] = answer["code"]
        return answer


@functools.cache
def shared() -> Forge:
    """Return the forge of this process, which ends with it."""
    with tempfile.NamedTemporaryFile() as log:
        return Forge(pathlib.Path(log.name))


def main() -> None:
    """Serve requests until standard input ends. In a forked process, execute the request."""
    os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3")
    # As for `python -m trainers.NAME`, which handles Ctrl-C from its first import on.
    sys.argv = ["-m"]
    for module in MODULES:
        importlib.import_module(module)
    # The garbage collector of a forked process would write to shared memory.
    gc.freeze()
    _answer({"ready": True})
    request = _serve()
    if request is None:
        return
    import tensorflow as tf

    from trainers.cli.startup import run_program

    sys.argv += request["words"][1:]
    program = importlib.import_module(request["words"][0]).main
    # AutoGraph takes half of the time of a short training, and the programs have no control flow to convert.
    try:
        run_program(tf.autograph.experimental.do_not_convert(program))
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        # The destruction of imported modules would first copy their memory.
        os._exit(ended.code if isinstance(ended.code, int) else 1)


def _serve() -> dict[str, Any] | None:
    # Ctrl-C reaches the whole process group. Only the parent process handles it.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    wakes, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    running: set[int] = set()
    rest = b""
    while True:
        ready, _, _ = select.select([0, wakes], [], [])
        if wakes in ready:
            os.read(wakes, 1 << 10)
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    running.discard(pid)
                    _answer({"ended": pid, "code": os.waitstatus_to_exitcode(status)})
        if 0 not in ready:
            continue
        data = os.read(0, 1 << 16)
        if not data:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            return None
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, interrupt)
                _become(request, wakes, waker)
                return request
            running.add(pid)
            _answer({"pid": pid})


def _become(request: dict[str, Any], *descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    appended = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    opened = [
        os.open(os.devnull, os.O_RDONLY),
        *(os.open(request[name], appended, 0o600) for name in ("log", "errors")),
    ]
    for new, old in enumerate(opened):
        os.dup2(old, new)
        os.close(old)
    os.environ.clear()
    os.environ.update(request["env"])


def _answer(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
