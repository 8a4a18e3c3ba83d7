"""What the trials share: a folder, processes, runs that nothing has disturbed, and moments to disturb others."""

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
    """Starts processes, and ends them all when it is closed.

    Args:
        folder: for everything that is written.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self._forge: Forge | None = None
        self._processes: list[Process] = []
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def forge(self) -> Forge:
        if self._forge is None:
            self._forge = Forge(self.folder / "log-forge")
        return self._forge

    def close(self) -> None:
        """Ends every process."""
        for process in self._processes:
            process.send(signal.SIGKILL)
        if self._forge is not None:
            self._forge.close()

    def start(self, *words: object, cold: bool = False, env: Mapping[str, str] | None = None) -> Process:
        """Starts `python -m WORDS`.

        Args:
            words: a module with a `main`, and its arguments.
            cold: with an interpreter of its own, which imports everything; else as a copy of a process that has.
            env: additions to the environment.
        """
        log = self.folder / f"log-{len(self._processes)}"
        text, environment = list(map(str, words)), {**os.environ, **(env or {})}
        process = Started(text, log, environment) if cold else self.forge.start(text, log, environment)
        self._processes.append(process)
        return process

    def place(self, name: str) -> pathlib.Path:
        """A path at which nothing is."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        return path

    @functools.cached_property
    def whole(self) -> "Whole":
        """A run that nothing has disturbed."""
        before, run = self.forge.cpu_seconds(), self.place("whole")
        process = self.start(*TRAINING, "--out", run)
        assert process.wait() == 0, process.said()
        return Whole(run, self.forge.cpu_seconds() - before)

    @functools.cached_property
    def whole_of_two(self) -> "Whole":
        """The same of two workers."""
        before, run = self.forge.cpu_seconds(), self.place("whole-of-two")
        with self.cluster(2) as cluster:
            for process in cluster.start(*TRAINING, "--out", run).values():
                assert process.wait() == 0, process.said()
        return Whole(run, (self.forge.cpu_seconds() - before) / 2)

    @contextlib.contextmanager
    def cluster(self, workers: int) -> Iterator["Cluster"]:
        """A cluster, whose processes are killed at the end of the block."""
        cluster = Cluster(self, workers)
        try:
            yield cluster
        finally:
            for process in cluster.processes.values():
                process.send(signal.SIGKILL)
                process.wait()

    def cpu_seconds(self) -> float:
        """What everything has cost so far; a process counts when it has ended."""
        spent = sum(os.times()[:4])
        return spent if self._forge is None else spent + self._forge.cpu_seconds()


class Cluster:
    """The tasks of a cluster on this machine.

    Attributes:
        jobs, control_port: see `trainers.launch.local_cluster`.
        token: what the tasks know one another by.
        processes: the process started last for each task.
    """

    def __init__(self, bench: Bench, workers: int):
        self.jobs, self.control_port = local_cluster(workers)
        self.tasks = [f"worker {index}" for index in range(workers)]
        self.token, self.processes = token.new(), dict[str, Process]()
        self._bench = bench

    def start(
        self, *words: object, tasks: list[str] | None = None, more: Sequence[object] = (), cold: bool = False
    ) -> dict[str, Process]:
        """Starts all tasks or some with the same words, and with `more` of them; `cold` as for `Bench.start`."""
        for task in tasks or self.tasks:
            env = task_environment(self.jobs, task, self.token)
            all_words = (*words, *more, "--control-port", self.control_port)
            self.processes[task] = self._bench.start(*all_words, cold=cold, env=env)
        return self.processes

    def other(self, task: str) -> str:
        """The other one of two tasks."""
        (other,) = set(self.tasks) - {task}
        return other


class Whole:
    """A run that nothing has disturbed.

    Attributes:
        run: its folder.
        seconds: what each of its processes has cost.
    """

    def __init__(self, run: pathlib.Path, seconds: float):
        self.run, self.seconds = run, seconds

    def check_same(self, run: pathlib.Path, kinds: tuple[str, ...] = ("train", "test")) -> None:
        """Raises AssertionError unless a run has ended with the same bits and metrics, and left nothing unfinished.

        Args:
            run: its folder.
            kinds: of records; a run that was stopped by a signal has one more "train" record, at the stop.
        """
        newest = f"checkpoints/step-{STEPS:08d}/checkpoint.data-00000-of-00001"
        if (run / newest).read_bytes() != (self.run / newest).read_bytes():
            # Names the tensor that differs.
            assert_same_run(run, self.run)
        assert _metrics(run, kinds) == _metrics(self.run, kinds), f"{run}: other metrics"
        assert not list(run.rglob(".writing-*")), f"{run}: something unfinished is left"
        assert (run / "result.json").is_file(), f"{run} has no result"


def _metrics(run, kinds):
    names = ("kind", "step", "loss", "error")
    return [tuple(record[name] for name in names) for record in records(run) if record["kind"] in kinds]


def wait_for(process: Process, condition) -> None:
    """Waits until a condition holds or a process has ended."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and not condition():
        assert time.monotonic() < deadline, process.said()[-2000:]
        time.sleep(0.02)


def wait_for_a_moment(
    process: Process, run: pathlib.Path, chance: random.Random, seconds: float, stride: int, pid: int = 0
) -> None:
    """Waits until a random moment, or until a process has ended.

    Args:
        process: which trains.
        run: its folder.
        chance: decides whether the moment is one of the first `seconds`, or in the middle or at the end of training.
        seconds: about what all of it costs, in seconds of a core.
        stride: how many steps a moment is away from the one before, on average.
        pid: of a process that is started by the first one and trains in its place.
    """
    trains = pid or process.pid
    if chance.random() < 0.35:
        target, cost = 0, seconds * chance.random()
    else:
        target, cost = reached(run) + chance.randrange(1, 2 * stride), 0.1 * chance.random()
        if target >= STEPS:
            # While it exports.
            target, cost = STEPS, 0.3 * seconds * chance.random()
    wait_for(process, lambda: reached(run) >= target)
    # The time of a clock would say less: the machine may be busy.
    spent = cpu_seconds(trains) if target else 0.0
    wait_for(process, lambda: cpu_seconds(trains) >= spent + cost)
