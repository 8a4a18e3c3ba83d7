"""Shared parts of the trials: a folder, processes, uninterrupted runs, and random moments for interruptions."""

import contextlib
import functools
import os
import pathlib
import random
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence

from tests.support.forge import PATIENCE, Forge, Process, Started, cpu_seconds
from tests.support.processes import assert_same_run, reached, records, task_environment
from trainers.cluster import token
from trainers.launch import local_cluster

STEPS = 120
NETWORK = ["--dataset", "shapes", "--train-images", 500, "--test-images", 100, "--blocks", 1, "--stem", 4]
NETWORK += ["--widths", 4, "--batch-size", 16, "--initializer", "standard"]
TRAINING = ["trainers.cifar", *NETWORK, "--steps", STEPS, "--drop-steps", 80, "--log-every", 5, "--evaluate-every", 60]
TRAINING += ["--checkpoint-every", 10]


class Bench:
    """Processes in a common folder, which are killed when the bench is closed.

    Args:
        folder: folder of all output.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self._forge: Forge | None = None
        self._processes: list[Process] = []
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def forge(self) -> Forge:
        """Source of prepared processes."""
        if self._forge is None:
            self._forge = Forge(self.folder / "log-forge")
        return self._forge

    def close(self) -> None:
        """Kill every process."""
        for process in self._processes:
            process.send(signal.SIGKILL)
        if self._forge is not None:
            self._forge.close()

    def start(self, *words: object, cold: bool = False, env: Mapping[str, str] | None = None) -> Process:
        """Start `python -m WORDS`.

        Args:
            words: a module with a `main` function, and its arguments.
            cold: if True, start a new interpreter, which imports everything. Otherwise copy a process that has done so.
            env: additions to the environment.
        """
        log = self.folder / f"log-{len(self._processes)}"
        text, environment = list(map(str, words)), {**os.environ, **(env or {})}
        process = Started(text, log, environment) if cold else self.forge.start(text, log, environment)
        self._processes.append(process)
        return process

    def place(self, name: str) -> pathlib.Path:
        """Return the path of a name in the folder, at which nothing exists."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        return path

    @functools.cached_property
    def whole(self) -> "Whole":
        """An uninterrupted run."""
        before, run = self.forge.cpu_seconds(), self.place("whole")
        process = self.start(*TRAINING, "--out", run)
        assert process.wait() == 0, process.said()
        return Whole(run, self.forge.cpu_seconds() - before)

    @functools.cached_property
    def whole_of_two(self) -> "Whole":
        """An uninterrupted run of two workers."""
        before, run = self.forge.cpu_seconds(), self.place("whole-of-two")
        with self.cluster(2) as cluster:
            for process in cluster.start(*TRAINING, "--out", run).values():
                assert process.wait() == 0, process.said()
        return Whole(run, (self.forge.cpu_seconds() - before) / 2)

    @contextlib.contextmanager
    def cluster(self, workers: int) -> Iterator["Cluster"]:
        """Yield a cluster, and kill its processes at the end of the block."""
        cluster = Cluster(self, workers)
        try:
            yield cluster
        finally:
            for process in cluster.processes.values():
                process.send(signal.SIGKILL)
                process.wait()

    def cpu_seconds(self) -> float:
        """Return the CPU time of all processes that have ended."""
        spent = sum(os.times()[:4])
        return spent if self._forge is None else spent + self._forge.cpu_seconds()


class Cluster:
    """Tasks of a cluster on this machine.

    Attributes:
        jobs, control_port: see `trainers.launch.local_cluster`.
        token: the shared secret of the tasks.
        processes: the newest process of each task.
    """

    def __init__(self, bench: Bench, workers: int):
        self.jobs, self.control_port = local_cluster(workers)
        self.tasks = [f"worker {index}" for index in range(workers)]
        self.token, self.processes = token.generate(), dict[str, Process]()
        self._bench = bench

    def start(
        self, *words: object, tasks: list[str] | None = None, more: Sequence[object] = (), cold: bool = False
    ) -> dict[str, Process]:
        """Start all or some tasks with the same words, followed by `more`. `cold` is that of `Bench.start`."""
        for task in tasks or self.tasks:
            env = task_environment(self.jobs, task, self.token)
            all_words = (*words, *more, "--control-port", self.control_port)
            self.processes[task] = self._bench.start(*all_words, cold=cold, env=env)
        return self.processes

    def other(self, task: str) -> str:
        """Return the other one of two tasks."""
        (other,) = set(self.tasks) - {task}
        return other


class Whole:
    """An uninterrupted run.

    Attributes:
        run: folder of the run.
        seconds: CPU time of each of its processes.
    """

    def __init__(self, run: pathlib.Path, seconds: float):
        self.run, self.seconds = run, seconds

    def check_same(self, run: pathlib.Path, kinds: tuple[str, ...] = ("train", "test")) -> None:
        """Raise AssertionError unless a run ended with the same bits and metrics and without unfinished files.

        Args:
            run: folder of the run.
            kinds: kinds of the compared records. A run that was stopped by a signal has an additional "train" record.
        """
        newest = f"checkpoints/step-{STEPS:08d}/checkpoint.data-00000-of-00001"
        if (run / newest).read_bytes() != (self.run / newest).read_bytes():
            # The message names the tensor that differs.
            assert_same_run(run, self.run)
        assert _metrics(run, kinds) == _metrics(self.run, kinds), f"{run}: other metrics"
        assert not list(run.rglob(".writing-*")), f"{run}: unfinished files"
        assert (run / "result.json").is_file(), f"{run} has no result"


def _metrics(run, kinds):
    names = ("kind", "step", "loss", "error")
    return [tuple(record[name] for name in names) for record in records(run) if record["kind"] in kinds]


def wait_for(process: Process, condition) -> None:
    """Wait until a condition holds or a process has ended."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and not condition():
        assert time.monotonic() < deadline, process.said()[-2000:]
        time.sleep(0.02)


def wait_for_a_moment(
    process: Process, run: pathlib.Path, chance: random.Random, seconds: float, stride: int, pid: int = 0
) -> None:
    """Wait until a random moment, or until a process has ended.

    Args:
        process: the training process.
        run: folder of its run.
        chance: random generator. The moment is within the first `seconds`, during training or at its end.
        seconds: approximate CPU time of the whole process.
        stride: mean number of steps between two moments.
        pid: process ID of a child that trains in place of `process`, or 0.
    """
    trains = pid or process.pid
    if chance.random() < 0.35:
        target, cost = 0, seconds * chance.random()
    else:
        target, cost = reached(run) + chance.randrange(1, 2 * stride), 0.1 * chance.random()
        if target >= STEPS:
            # During the export.
            target, cost = STEPS, 0.3 * seconds * chance.random()
    wait_for(process, lambda: reached(run) >= target)
    # CPU time does not depend on the load of the machine.
    spent = cpu_seconds(trains) if target else 0.0
    wait_for(process, lambda: cpu_seconds(trains) >= spent + cost)
