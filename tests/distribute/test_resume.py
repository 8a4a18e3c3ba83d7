"""Exact resume of `fit` on two workers, in processes that are ended by signals at random moments."""

import json
import random
import re
import signal
import time

import numpy as np
import pytest

from tests.support.fit_sources import STEPS
from tests.support.processes import PATIENCE, Cluster, run_forked
from tests.support.worker_fits import FAILURES

PROGRAM = "tests.support.worker_fits"
SOURCES = ["`FunctionBatches`", "arrays, `shuffle=True`", "`tf.data`, shuffled anew each epoch, prefetched"]
# Number of workers, data, kind of optimizer, and number of kills of random workers.
KILLS = [
    (2, SOURCES[1], "mixed", 6),
    (2, SOURCES[2], "", 4),
    (2, SOURCES[1], "accumulate", 6),
    (3, SOURCES[0], "accumulate", 5),
]
# Results that differ between runs.
NOT_COMPARED = ("resumed_at", "is_paused", "warnings", "values")


def run(*arguments, workers=2):
    """Run the workers to the end. Return their outputs."""
    with Cluster(workers) as cluster:
        cluster.start(PROGRAM, *arguments)
        ended = cluster.finish(timeout=900)
    assert [code for code, _ in ended.values()] == [0] * workers, ended
    return [output for _, output in ended.values()]


def results(folder, index):
    return json.loads((folder / f"result-{index}.json").read_text())


def compared(folder, workers=2):
    return [{n: v for n, v in results(folder, i).items() if n not in NOT_COMPARED} for i in range(workers)]


def batches(folder, index):
    path = folder / f"progress-{index}"
    return path.stat().st_size if path.exists() else 0


def interrupt(folder, source, victim, number, after, delay=0.0, workers=2, kind=""):
    """Start all workers and send a signal to one after a number of batches. Return False if they ended before."""
    name = f"worker {victim}"
    begin, deadline = batches(folder, victim), time.monotonic() + PATIENCE
    with Cluster(workers) as cluster:
        cluster.start(PROGRAM, folder, source, f"kind={kind}")
        process = cluster.processes[name]
        while batches(folder, victim) < begin + after and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(delay)
        process.send_signal(number)
        if not after:
            # The others may wait for this one, which has not been connected.
            for process in cluster.processes.values():
                process.send_signal(number)
        sent = time.monotonic()
        ended = cluster.finish(timeout=900)
        waited = time.monotonic() - sent
    if ended[name][0] == 0 and number == signal.SIGKILL:
        return False
    if number == signal.SIGKILL and after:
        assert ended.pop(name)[0] == -number
        assert waited < 120
        newest = "The last good checkpoint is that of step|There is no checkpoint yet"
        lost = rf"{name} \(127.0.0.1:\d+\)" + "|another task" * (workers > 2)
        for code, output in ended.values():
            # A worker may have trained to the end before.
            assert code == 0 or (code == 1 and re.search(rf"({lost}) was lost: .* ({newest})", output)), output
    return True


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a function that returns the results of an uninterrupted run."""
    known = {}

    def find(source, workers=2, kind=""):
        key = source, workers, kind
        if key not in known:
            folder = tmp_path_factory.mktemp("whole")
            run(folder, source, f"kind={kind}", workers=workers)
            known[key] = compared(folder, workers)
        return known[key]

    return find


def test_a_killed_chief_and_a_terminated_worker(tmp_path, whole):
    source = SOURCES[0]
    assert interrupt(tmp_path, source, 0, signal.SIGKILL, after=4)
    before = [batches(tmp_path, index) for index in range(2)]
    assert interrupt(tmp_path, source, 1, signal.SIGTERM, after=3)
    stopped = [results(tmp_path, index) for index in range(2)]
    assert [each["is_paused"] for each in stopped] == [True, True]
    ends = [stopped[index]["resumed_at"] + batches(tmp_path, index) - before[index] for index in range(2)]
    run(tmp_path, source)
    assert compared(tmp_path) == whole(source)
    # The checkpoint of the stop.
    assert [results(tmp_path, index)["resumed_at"] for index in range(2)] == ends
    assert stopped[0]["resumed_at"] < ends[0] < 2 * STEPS


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "source", "kind", "count"), KILLS)
def test_kills_at_random_moments(tmp_path, whole, workers, source, kind, count):
    chance, kills, number = random.Random(f"{workers} {source} {kind}"), 0, 0
    while kills < count:
        folder, number = tmp_path / str(number), number + 1
        folder.mkdir()
        # 0 batches: all workers are killed while they connect, build the model or restore the checkpoint.
        while kills < count:
            after, victim = chance.choice([0, 1, 2, 3, 4, 5]), chance.randrange(workers)
            delay = (0.2 if after else 8.0) * chance.random()
            if not interrupt(folder, source, victim, signal.SIGKILL, after, delay, workers, kind):
                break
            kills += 1
        run(folder, source, f"kind={kind}", workers=workers)
        assert compared(folder, workers) == whole(source, workers, kind), f"after {kills} kills"


@pytest.mark.slow
def test_another_number_of_workers(tmp_path):
    """Three workers, two and three again end where an uninterrupted process ends, up to rounding."""
    source, changed = SOURCES[0], tmp_path / "changed"
    run(changed, source, "plain", "stop=3", workers=3)
    assert results(changed, 0)["resumed_at"] == 0
    run(changed, source, "plain", "stop=9", workers=2)
    found = results(changed, 0)
    assert found["resumed_at"] == 3
    assert "saved on 3 CPUs (MultiWorkerMirroredStrategy), now 2 CPUs (MultiWorker" in found["warnings"][0]
    run(changed, source, "plain", workers=3)
    done = run_forked(PROGRAM, tmp_path / "whole", source, "plain", "one")
    assert done.returncode == 0, done.stderr
    expected = results(tmp_path / "whole", 0)
    for index in range(3):
        found = results(changed, index)
        assert found["resumed_at"] == 12
        np.testing.assert_allclose(found["values"], expected["values"], 1e-4, 1e-5)
        for name, values in expected["history"].items():
            np.testing.assert_allclose(found["history"][name], values, 1e-5)


def test_errors_of_one_worker_are_raised_on_all(tmp_path):
    chief, worker = (
        [line for line in output.splitlines() if re.match(r"\d ", line)] for output in run(tmp_path, "failures")
    )
    assert len(chief) == len(worker) == len(FAILURES)
    for number, (name, message) in enumerate(FAILURES.items()):
        assert re.search(message, worker[number]), f"{name}: {worker[number]}"
        assert re.search(message, chief[number]), f"{name}: {chief[number]}"
        # Others raise the built-in error from which that of the worker is derived.
        kind = worker[number].split()[1].replace("OtherRun", "ValueError")
        # Messages of both workers name the other one, if the cause is a difference.
        prefix = "" if name in ("other data", "other weights", "another folder") else "worker 1: "
        assert chief[number].startswith(f"{number} {kind} {prefix}"), f"{name}: {chief[number]}"
