"""Runs of the training programs in separate processes, and their files."""

import contextlib
import importlib
import json
import multiprocessing.forkserver
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

from idmatters_tf.checkpointing import checkpoint_path, list_steps
from idmatters_tf.distribute.description import make_local_cluster
from tests.conftest import ROOT

# Time limit in seconds on a busy machine.
PATIENCE = 900.0
# Environment variable with the number of logical devices of the CPU in a forked process.
DEVICES = "IDMATTERS_TEST_DEVICES"
# Environment variable of trainings without exports.
WITHOUT_EXPORTS = "IDMATTERS_TEST_WITHOUT_EXPORTS"


def execute(words, environment, output, errors):
    """Run a program in a forked process and end the process."""
    for descriptor, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-m", *words[1:]]
    import tensorflow as tf

    from trainers.cli.startup import run_program

    devices = int(environment.get(DEVICES, 1))
    if devices > 1:
        logical = [tf.config.LogicalDeviceConfiguration()] * devices
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)

    if WITHOUT_EXPORTS in environment:
        from trainers.training import train

        train.export_newest = lambda task: None

    # AutoGraph takes half of the time of a short training, and the programs have no control flow to convert.
    try:
        main = tf.autograph.experimental.do_not_convert(importlib.import_module(words[0]).main)
        run_program(lambda: main(words[1:]))
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        # The destruction of imported modules would first copy their memory.
        os._exit(ended.code if isinstance(ended.code, int) else 1)


def fork(target, *arguments):
    """Start a process that calls a function, forked from a server that has imported the modules."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.preloaded"])
    # The environment of the server, which is started with the first process.
    with mock.patch.dict(os.environ, PYTHONPATH=str(ROOT)):
        multiprocessing.forkserver.ensure_running()
    process = context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


class Forked:
    """A process with all modules imported, with the interface of `subprocess.Popen`.

    It is forked from a server that has imported the modules, so that it uses one second of a core instead of ten.

    Args:
        words: a module and its arguments.
        env: environment of the process.
        separate: if True, `communicate` returns standard output and standard error, not both in one text.
    """

    def __init__(self, words, env=None, separate=False):
        self._folder = tempfile.TemporaryDirectory()
        self._logs = [pathlib.Path(self._folder.name, name) for name in ("output", "errors")][: 1 + separate]
        self._process = fork(execute, list(map(str, words)), dict(env or os.environ), self._logs[0], self._logs[-1])
        self.pid = self._process.pid

    def poll(self):
        """Return the exit code, negative after a signal, or None while the process runs."""
        return self._process.exitcode

    def send_signal(self, number):
        """Send a signal if the process still runs."""
        if self.poll() is None:
            # The process may have ended.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=PATIENCE):
        """Wait for the end and return the outputs. After a timeout the process continues."""
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        self.returncode = self.poll()
        texts = [log.read_text(errors="backslashreplace") if log.exists() else "" for log in self._logs]
        return texts[0], texts[-1]


def run_forked(*arguments, devices=1):
    """Return the result of the fixture `program` for a program that the server has imported.

    The CPU is split into `devices` logical devices.
    """
    process = Forked(arguments, {**os.environ, DEVICES: str(devices)}, separate=True)
    output, errors = process.communicate()
    return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


def run_steps(steps, folder, backend="tensorflow"):
    """Run the steps of `tests.support.steps` in one process, on TensorFlow a forked one. Return the output."""
    file = folder / "steps.json"
    file.write_text(json.dumps(steps))
    if backend == "tensorflow":
        done = run_forked("tests.support.steps", folder, file)
    else:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "tests.support.steps", str(folder), str(file)]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def tensors(run):
    """Return the variables in the newest checkpoint of a run, by name."""
    from idmatters_tf.callbacks import _encoding

    step = list_steps(run / "checkpoints")[-1]
    saved = _encoding.read(checkpoint_path(run / "checkpoints", step))
    return {
        f"{owner}/{number}/{path}": value
        for owner, values in saved["state"]["variables"].items()
        for number, (value, (path, *_)) in enumerate(zip(values, saved["description"][owner], strict=True))
    }


def cut_back(run, other):
    """Copy a run that has ended to a folder, without what it wrote since its last but one checkpoint."""
    shutil.copytree(run, other)
    (other / "result.json").unlink()
    *_, kept, last = list_steps(other / "checkpoints")
    shutil.rmtree(checkpoint_path(other / "checkpoints", last))
    lines = (other / "metrics.jsonl").read_text().splitlines(keepends=True)
    (other / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["step"] <= kept))
    return kept


def assert_same_run(run, other):
    """Check that the newest checkpoints of two runs are equal bit for bit."""
    import numpy as np

    ours, theirs = tensors(run), tensors(other)
    assert set(ours) == set(theirs)
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


def records(run):
    """Return the metrics of a run."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    # The last line may be incomplete while the program is writing.
    return [json.loads(line) for line in lines if line.endswith("}")]


def reached(run):
    """Return the last step in the metrics."""
    return max((record["step"] for record in records(run)), default=0) if (run / "metrics.jsonl").exists() else 0


def wait_until(process, run, step):
    """Wait until a run has reached a step, or its process has ended."""
    deadline = time.monotonic() + 900
    while process.poll() is None and reached(run) < step:
        assert time.monotonic() < deadline, "no progress within 15 minutes"
        time.sleep(0.02)


class Cluster:
    """Processes of a cluster on this machine, each with its TF_CONFIG. They are killed at the end of the test."""

    def __init__(self, workers, ps=0):
        self.environments = make_local_cluster(workers, ps)
        self.tasks = list(self.environments)
        self.jobs = json.loads(self.environments[self.tasks[0]]["TF_CONFIG"])["cluster"]
        self.processes = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=900)

    def start(self, *arguments, tasks=None):
        """Start all or the named tasks with the same arguments."""
        for task in tasks or self.tasks:
            environment = {**os.environ, **self.environments[task], "PYTHONUNBUFFERED": "1"}
            self.processes[task] = Forked(arguments, environment)

    def kill(self, task):
        """Kill a task by SIGKILL."""
        self.processes[task].send_signal(signal.SIGKILL)
        self.processes.pop(task).communicate(timeout=900)

    def finish(self, timeout=900):
        """Wait for all tasks. Return their exit codes and outputs by task."""
        deadline = time.monotonic() + timeout
        ended = {}
        for task, process in self.processes.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, _ = process.communicate(timeout=max(1, deadline - time.monotonic()))
                ended[task] = (process.returncode, output)
        assert len(ended) == len(self.processes), f"still running: {set(self.processes) - set(ended)}; {ended}"
        self.processes = {}
        return ended
