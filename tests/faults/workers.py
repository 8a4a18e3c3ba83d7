"""Faults of two workers: one is killed, stopped, absent or has other settings, or their launcher is killed."""

import contextlib
import io
import os
import pathlib
import random
import signal
import time

from trainers.cluster.server import SILENT_SECONDS

from tests.faults.bench import TRAINING, Bench, Cluster, wait_for, wait_for_a_moment
from tests.faults.tally import Tally
from tests.support.processes import children, runs
from trainers.cifar import Cifar
from trainers.cli.arguments import UsageError
from trainers.cli.settings import Option, options, parse
from trainers.networks.identity import Identity
from trainers.training.program import make_parser
from trainers.training.settings import Intervals, Recipe

KILLS_A_RUN, HANGS_A_RUN = 5, 3
STRIDE = 20
KILL = "two workers: SIGKILL of either at a random moment, then the same command for both"
HANG = "two workers: SIGSTOP of either for longer than the heartbeat allows, then SIGCONT"
ABSENT = "two workers: one is never started"
OTHER = "two workers: one setting differs"
LAUNCHER = "SIGKILL of the launcher of two workers at a random moment"


def kills(bench: Bench, chance: random.Random, most: int) -> Tally:
    """Kill one of two workers repeatedly."""
    tally, run, killed = Tally(), bench.place("workers"), 0
    seconds, wrong = bench.whole_of_two.seconds, ""
    while killed < min(most, KILLS_A_RUN) and not wrong:
        with bench.cluster(2) as cluster:
            _start_both(cluster, run)
            victim = chance.choice(cluster.tasks)
            wait_for_a_moment(cluster.processes[victim], run, chance, seconds, STRIDE)
            cluster.processes[victim].send(signal.SIGKILL)
            if cluster.processes[victim].wait() == 0:
                break
            killed += 1
            other = cluster.processes[cluster.other(victim)]
            other.wait()
            # The other worker may have finished.
            if other.code and not (other.code == 1 and f"error: {victim} (" in other.said()):
                wrong = f"{victim} was killed: exit code {other.code}: {other.said()}"
            if "Traceback" in other.said():
                wrong = other.said()
    wrong = wrong or _finish(bench, run)
    tally.count(KILL, killed, 0 if wrong else killed, wrong)
    return tally


def hangs(bench: Bench, chance: random.Random, most: int) -> Tally:
    """Stop one of two workers for a while, repeatedly."""
    tally, run, count = Tally(), bench.place("hanging"), 0
    whole, wrong = bench.whole_of_two.seconds, ""
    with bench.cluster(2) as cluster:
        _start_both(cluster, run)
        while count < min(most, HANGS_A_RUN) and not wrong:
            victim = chance.choice(cluster.tasks)
            process, other = cluster.processes[victim], cluster.processes[cluster.other(victim)]
            wait_for_a_moment(process, run, chance, whole / HANGS_A_RUN, STRIDE)
            if process.poll() is not None:
                break
            before = other.said().count("has been silent for")
            process.send(signal.SIGSTOP)
            count += 1
            stopped = time.monotonic()
            seconds = SILENT_SECONDS * (1.5 + chance.random())
            wait_for(other, lambda stopped=stopped, seconds=seconds: time.monotonic() - stopped > seconds)
            # The chief may have finished.
            if other.poll() is None and other.said().count("has been silent for") == before:
                wrong = f"{victim} was stopped for {seconds:.0f} seconds without a message: {other.said()}"
            process.send(signal.SIGCONT)
        for process in cluster.processes.values():
            if process.wait() == 1 and "has been silent for" in process.said():
                # TensorFlow has given up, and the message is complete.
                continue
            if process.code:
                wrong = wrong or f"exit code {process.code}: {process.said()}"
    wrong = wrong or _finish(bench, run)
    tally.count(HANG, count, 0 if wrong else count, wrong)
    return tally


def absent(bench: Bench, chance: random.Random, most: int) -> Tally:
    """Start one of two workers, which ends with an error message."""
    tally = Tally()
    with bench.cluster(2) as cluster:
        task, seconds = chance.choice(cluster.tasks), chance.randrange(1, 4)
        # Heavy imports are deferred until the tasks have met.
        words = [*TRAINING, "--cluster-timeout", seconds, "--out", bench.place("absent")]
        process = cluster.start(*words, tasks=[task], cold=True)[task]
        code = process.wait()
    sentence = f"error: {task} waited {seconds} seconds (--cluster-timeout) for {cluster.other(task)} ("
    good = code == 1 and sentence in process.said() and "Traceback" not in process.said()
    tally.count(ABSENT, 1, good, f"exit code {code}: {process.said()}")
    return tally


def other_settings(bench: Bench, chance: random.Random, most: int) -> Tally:
    """Start two workers with one different setting. Both end with an error message that names it."""
    tally = Tally()
    option, first, second = _differing(chance)
    run = bench.place("differing")
    with bench.cluster(2) as cluster:
        for task, words in zip(cluster.tasks, (first, second), strict=True):
            cluster.start(*TRAINING, "--out", run, tasks=[task], more=words, cold=True)
        for process in cluster.processes.values():
            process.wait()
    said = [(process.code, process.said()) for process in cluster.processes.values()]
    good = all(code == 2 and f"{option.name} is " in text and "Traceback" not in text for code, text in said)
    tally.count(OTHER, 1, good, f"{first} and {second}: {said}")
    return tally


def _differing(chance: random.Random) -> tuple[Option, list[str], list[str]]:
    """Return a setting that must be equal for all tasks, and two values of it as options."""
    known = [option for each in (Recipe, Identity, Intervals) for option in options(each).values()]
    # A string may name a missing folder, which is detected before the tasks meet.
    known = [option for option in known if not option.free_per_task and (option.choices or option.kind is not str)]
    parser = make_parser(Cifar, None, "")
    while True:
        option = chance.choice(known)
        values = chance.sample(list(option.choices) or ["1", "2", "3", "0.25", "0.5", "0.75"], 2)
        ways = [[option.flag, value] for value in values] if option.kind is not bool else [[option.flag], []]
        lines = [[*map(str, TRAINING[1:]), *words] for words in ways]
        with contextlib.suppress(UsageError, SystemExit), contextlib.redirect_stderr(io.StringIO()):
            first, second = (Cifar.resolve({}, parse(parser, line)) for line in lines)
            if first != second:
                return option, ways[0], ways[1]


def launcher(bench: Bench, chance: random.Random, most: int) -> Tally:
    """Kill the launcher of two workers. The workers end, and the run can be resumed."""
    tally, run, seconds = Tally(), bench.place("launched"), 2 * bench.forge.seconds
    process = bench.start("trainers.launch", "--workers", 2, "--", "cifar", *TRAINING[1:], "--out", run, cold=True)
    wait_for(process, lambda: len(children(process.pid)) == 2)
    workers = children(process.pid)
    # The workers are importing, meeting or training.
    wait_for_a_moment(process, run, chance, seconds, STRIDE, pid=workers[0] if workers else 0)
    process.send(signal.SIGKILL)
    deadline, wrong = time.monotonic() + 60, ""
    if process.wait() != -signal.SIGKILL:
        wrong = f"exit code {process.code}: {process.said()}"
    while alive := [pid for pid in workers if runs(pid)]:
        if time.monotonic() > deadline:
            wrong = f"processes {alive} still run a minute after their launcher was killed"
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.1)
    wrong = wrong or _finish(bench, run)
    tally.count(LAUNCHER, 1, 0 if wrong else 1, wrong)
    return tally


def _start_both(cluster: Cluster, run: pathlib.Path) -> None:
    cluster.start(*TRAINING, "--out", run)
    # From here on both wait for each other in TensorFlow, and the end of one ends the other.
    chief = cluster.processes[cluster.tasks[0]]
    wait_for(chief, lambda: "shapes: " in chief.said())


def _finish(bench: Bench, run: pathlib.Path) -> str:
    """Let a run finish. Return a description of the failure, or an empty string."""
    try:
        with bench.cluster(2) as cluster:
            for process in cluster.start(*TRAINING, "--out", run).values():
                assert process.wait() == 0, process.said()
                assert "Traceback" not in process.said(), process.said()
        bench.whole_of_two.check_same(run)
    except (AssertionError, OSError, TimeoutError) as error:
        return str(error)
    return ""
