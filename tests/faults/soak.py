"""A long run of the smallest network with constant memory, threads and file descriptors."""

import dataclasses
import pathlib
import random
import time

from tests.faults.bench import NETWORK, Bench
from tests.faults.tally import Tally
from tests.support.forge import PATIENCE
from tests.support.processes import reached, records

ROW = "steps of a long run with constant memory, threads and file descriptors"
STEPS_PER_EVALUATION, MEASUREMENTS = 15, 5
# Approximate number of Hessian-vector products of a measurement, see `trainers.training.curvature`.
PRODUCTS = 100
# Released memory that an allocator may keep.
MEGABYTES = 24.0


@dataclasses.dataclass(frozen=True)
class Sample:
    """Resources of a process at a step: memory in MB, threads and open file descriptors."""

    step: int
    memory: float
    threads: int
    descriptors: int


def sample(pid: int, step: int) -> Sample:
    """Return the resources of a running process."""
    status = dict(
        line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    memory = int(status["VmRSS"].split()[0]) / 1024
    return Sample(step, memory, int(status["Threads"]), len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir())))


def growth(samples: list[Sample], steps: int) -> tuple[Sample, Sample]:
    """Return the maximum of each resource in the second quarter of a run, past the warm-up, and in the last."""

    def largest(first, last):
        within = [each for each in samples if first <= each.step / steps <= last]
        assert within, "too few samples"
        return Sample(
            within[-1].step,
            max(each.memory for each in within),
            max(each.threads for each in within),
            max(each.descriptors for each in within),
        )

    return largest(0.25, 0.5), largest(0.75, 1)


def is_flat(before: Sample, after: Sample) -> bool:
    """Return True if no resource has grown beyond the memory that an allocator may keep."""
    same = after.threads <= before.threads and after.descriptors <= before.descriptors
    return same and after.memory - before.memory < MEGABYTES


def soak(bench: Bench, chance: random.Random, most: int) -> Tally:
    """Train for `most` steps, with an evaluation every 15 steps and 100 Hessian-vector products after each fifth."""
    tally, run, steps = Tally(), bench.place("soaked"), most
    # The first measurement comes before the second quarter, the last one at the end.
    every = max(1, steps // MEASUREMENTS)
    words = [*NETWORK, "--steps", steps, "--drop-steps", steps // 2, "--learning-rate", 0.01, "--clip-norm", 1]
    words += ["--log-every", 15, "--evaluate-every", STEPS_PER_EVALUATION, "--checkpoint-every", 150]
    words += ["--curvature-every", every, "--curvature-examples", 32, "--out", run]
    process = bench.start("trainers.cifar", *words)
    samples, seen = [], 0
    deadline = time.monotonic() + 10 * PATIENCE
    while process.poll() is None and seen < steps:
        assert time.monotonic() < deadline, process.said()[-2000:]
        step = reached(run)
        if step > seen and process.poll() is None:
            samples.append(sample(process.pid, step))
            seen = step
        time.sleep(0.2)
    code = process.wait()
    if code:
        tally.count(ROW, steps, 0, process.said())
        return tally
    kinds = [record["kind"] for record in records(run)]
    before, after = growth(samples, steps)
    products = PRODUCTS * kinds.count("curvature")
    done = f"{steps:,} steps, {kinds.count('test')} evaluations, {products} Hessian-vector products"
    grown = ", ".join(
        f"{name} {getattr(before, field):.0f} and {getattr(after, field):.0f}{unit}"
        for name, field, unit in (
            ("memory", "memory", " MB"),
            ("threads", "threads", ""),
            ("file descriptors", "descriptors", ""),
        )
    )
    tally.notes.append(f"{done}. Maximum in the second and in the last quarter of the run: {grown}")
    tally.count(ROW, steps, steps * is_flat(before, after), tally.notes[-1])
    return tally
