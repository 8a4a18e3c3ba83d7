"""A long run of the smallest network: memory, threads and descriptors stay what they were."""

import dataclasses
import pathlib
import random
import time

from tests.faults.bench import NETWORK, Bench
from tests.faults.tally import Tally
from tests.support.forge import PATIENCE
from tests.support.processes import reached, records

ROW = "steps of one long run, in which memory, threads and descriptors stay flat"
STEPS_PER_EVALUATION, MEASUREMENTS = 15, 5
# `trainers.training.curvature` says: about so many Hessian-vector products.
PRODUCTS = 100
# What an allocator may keep of what it was given back.
MEGABYTES = 24.0


@dataclasses.dataclass(frozen=True)
class Sample:
    """What a process holds at a step: memory in MB, threads and open descriptors."""

    step: int
    memory: float
    threads: int
    descriptors: int


def sample(pid: int, step: int) -> Sample:
    """Of a process that runs."""
    status = dict(
        line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    memory = int(status["VmRSS"].split()[0]) / 1024
    return Sample(step, memory, int(status["Threads"]), len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir())))


def growth(samples: list[Sample], steps: int) -> tuple[Sample, Sample]:
    """The largest of what was held in the second quarter of a run, once everything has been used, and in the last."""

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
    """Whether nothing has grown but what an allocator keeps."""
    same = after.threads <= before.threads and after.descriptors <= before.descriptors
    return same and after.memory - before.memory < MEGABYTES


def soak(bench: Bench, chance: random.Random, most: int) -> Tally:
    """A run of `most` steps, with an evaluation every 15 steps and 100 Hessian-vector products after each fifth."""
    tally, run, steps = Tally(), bench.place("soaked"), most
    # Before the second quarter has begun, and at the end.
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
    what = f"{steps:,} steps, {kinds.count('test')} evaluations, {PRODUCTS * kinds.count('curvature')} products"
    grown = ", ".join(
        f"{name} {getattr(before, name):.0f} and {getattr(after, name):.0f}"
        for name in ("memory", "threads", "descriptors")
    )
    tally.notes.append(f"{what}: in the second quarter of the run and in the last, {grown} (memory in MB)")
    tally.count(ROW, steps, steps * is_flat(before, after), tally.notes[-1])
    return tally
